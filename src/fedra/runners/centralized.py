"""No federation: one model trained on the pooled examples of all clients, the yardstick of the papers' tables.

The pool is trained as the only client of a federation, so that objective, gradient rules, checkpoints and figures are
those of any run. What one round of one epoch would forget lives on: the optimizer's state is the pool's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ClientState, LooksBack
from fedra.core.evaluate import Counts
from fedra.core.job import Job, run_client
from fedra.core.local_training import LocalTraining
from fedra.core.model import Weights
from fedra.core.optimizer import Optimizer
from fedra.core.part import Part
from fedra.core.sharing import Sharing
from fedra.core.tree import Params, Tree
from fedra.errors import ConfigError
from fedra.runners.base import Done, Evaluation, Result, Runner, threads
from fedra.runners.processes import default_workers
from fedra.runners.sequential import SequentialRunner

OPTIMIZER = "optimizer"
"""Under this name the pool remembers the optimizer's state; no part has it."""


class LastingOptimizer(Optimizer):
    """The optimizer of one epoch: it goes on from the last epoch's state, and its rate moves with every step."""

    def __init__(self, local: LocalTraining, epoch: int, steps: int, state: Tree, on_step: Callable[[], None]) -> None:
        super().__init__(local.at(epoch).lr)
        self._local, self._epoch, self._steps = local, epoch, steps
        self._done, self._on_step = 0, on_step
        self.state = state

    def init(self, params: Params) -> Tree:
        # A copy: an epoch that is interrupted must leave the last one's state as it was.
        self.state = tree.each(self.state, torch.clone) or self._local.at(self._epoch).init(params)
        return self.state

    def step(self, params: Params, gradient: Params, state: Tree) -> Tree:
        now = self._local.at(self._epoch + self._done / self._steps)
        self.state = now.step(params, gradient, state)
        self._done += 1
        self._on_step()
        return self.state


class CentralizedRunner:
    """See `centralized`; `on_step` is called after every step."""

    def __init__(self, job: Job, threads: int) -> None:
        refuse_federated_parts(job.algorithm)
        if len(job.clients) != 1 or job.local.epochs != 1:
            raise ConfigError(
                "the centralized runner trains one pool, one epoch a round: put all examples into one client, "
                "with epochs = 1"
            )
        self._job = job
        self._threads = threads
        self._alone = SequentialRunner(job, threads)
        self.steps = job.local.steps(job.clients.size(0))
        self.on_step: Callable[[], None] = lambda: None

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result]:
        job = self._job
        for client in cohort:
            known = dict(memory(client))
            state = job.model.arrange_tree(known.pop(OPTIMIZER, {}))
            optimizer = LastingOptimizer(job.local, round, self.steps, state, self.on_step)
            with threads(self._threads):
                remembered, upload = run_client(job, round, client, origin, received, known, optimizer)
            yield Result(client, remembered | ({OPTIMIZER: optimizer.state} if optimizer.state else {}), upload)

    def evaluate(self, weights: Weights) -> Counts:
        return self._alone.evaluate(weights)

    def begin_evaluation(self, weights: Weights) -> Evaluation:
        return Done(self.evaluate(weights))

    def close(self) -> None:
        """Nothing to give back."""


def refuse_federated_parts(algorithm: Algorithm) -> None:
    """Refuse what has no meaning without clients: an anchor at the round's start, memories, averages of many."""
    for part in algorithm.every_part():
        reason = _reason(part, algorithm)
        if reason is not None:
            raise ConfigError(
                f"centralized training cannot use the part '{part.name}', which {reason}: take it out, or "
                "use fedavg for plain training on the pooled examples"
            )


def _reason(part: Part, algorithm: Algorithm) -> str | None:
    if isinstance(part, Sharing):
        return "keeps parameters with clients" if part.remembers else None
    if part == algorithm.combine:
        return None if algorithm.combine.is_plain else "joins the uploads of many clients"
    if part == algorithm.personalize:
        return "makes a model for every client"
    if part in algorithm.server:
        return "acts on the average of many clients"
    if isinstance(part, LooksBack):
        return "compares with the model that a round began with"
    if isinstance(part, ClientState) and not part.suits_pool:
        return "remembers something for every client"
    return None


def centralized(job: Job, *, threads: Annotated[int, Field(ge=1)] | None = None) -> Runner:
    """No federation: one model on the pooled examples of all clients, as the yardstick; a round is an epoch.

    The optimizer's state lives on from epoch to epoch, and a learning-rate schedule moves with every step. Partition
    and objective are the configuration's; local.epochs, cohort, faults and what diagnostics ask of clients do not
    apply, which the run says; parts that have no meaning without clients are refused. All cores work on a
    batch unless `threads` says otherwise; their number changes the last bits.
    """
    return CentralizedRunner(job, threads or default_workers())
