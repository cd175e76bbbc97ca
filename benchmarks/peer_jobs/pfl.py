"""The job on Apple's pfl: its simulated backend, one process per core (by torchrun), one thread each."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from bare import Cnn, Work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from peer_jobs.timing import copies, gaps, must_differ


class Module(Cnn):
    """The CNN with the two methods that pfl asks for."""

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(images, labels)) * len(labels), len(labels))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.moments = [time.perf_counter()]

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.moments.append(time.perf_counter())
        return False, Metrics()


def job(work: Work, rounds: int, workers: int) -> list[float]:
    """Seconds of each round; the first one, which pfl evaluates, is the warm-up. Batches are not shuffled."""
    torch.set_num_threads(1)
    module = Module().to(memory_format=torch.channels_last)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    start, data = copies(module.parameters()), work.data()
    users = get_user_sampler("minimize_reuse", list(range(work.clients)))
    federated = FederatedDataset(lambda user: Dataset(data[user], user_id=str(user)), users)
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(rounds, rounds + 1, work.clients, None),
        backend=SimulatedBackend(federated, federated, [WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(work.batch, 1, work.lr),
        callbacks=[clock],
    )
    must_differ(start, copies(module.parameters()))
    return gaps(clock.moments)
