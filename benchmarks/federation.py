"""Jobs of fedra's that several benchmarks train, and a federation that trains one round at a call."""

from __future__ import annotations

from bare import CLASSES, Work
from torch import Tensor

from fedra.algorithms import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples
from fedra.core.job import Clients, Job
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model
from fedra.data.clients import SeparateClients
from fedra.experiment.build import add_class_owners
from fedra.experiment.cohort import CohortRule
from fedra.experiment.evaluators.evaluator import Evaluator, classification
from fedra.experiment.plan import Plan
from fedra.experiment.rounds import rounds
from fedra.models import build
from fedra.runners import RUNNERS
from fedra.storage.state import State

ENDLESS = 1_000_000
"""More rounds than any benchmark asks for."""


def cnn_job(work: Work, algorithm: Algorithm | None = None, epochs: int = 1, clients: Clients | None = None) -> Job:
    """The CNN on the work's random images (or on `clients`), without a test set."""
    model = Model(build("fedavg-cnn", (1, 28, 28), CLASSES, seed=0))
    own = clients if clients is not None else SeparateClients([Examples(*pair) for pair in work.data()])
    local = LocalTraining(epochs=epochs, batch=work.batch, lr=work.lr)
    job = Job(algorithm=algorithm or fedavg(), model=model, clients=own, local=local, classes=CLASSES, seed=0)
    return add_class_owners(job, own) if isinstance(own, SeparateClients) else job


class Federation:
    """A job and its runner; calling it trains one round."""

    def __init__(
        self, job: Job, runner: str, fraction: float = 1.0, evaluator: Evaluator = classification, **settings: int
    ) -> None:
        self._runner = RUNNERS[runner](job, **settings)
        self._state = State.fresh(job)
        plan = Plan(ENDLESS, CohortRule(fraction), evaluator=evaluator)
        self._rounds = rounds(job, self._runner, plan, self._state)

    def __call__(self) -> None:
        next(self._rounds)

    def weights(self) -> list[Tensor]:
        """The global weights now."""
        return [value.detach().clone() for value in self._state.server.weights.params.values()]

    def close(self) -> None:
        self._runner.close()
