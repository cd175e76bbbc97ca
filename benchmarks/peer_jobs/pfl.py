"""The job on Apple's pfl: its simulated backend, one process per core (by torchrun), one thread each."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from bare import Pair, Work
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
from torch import Tensor, nn

from peer_jobs.timing import Trained, copies


class Module(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.network(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(images, labels)) * len(labels), len(labels))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.moments = [time.perf_counter()]

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.moments.append(time.perf_counter())
        return False, Metrics()


def _shuffled(data: Pair, user: int) -> Dataset:
    """A client's examples in a new order, because pfl cuts batches in the order given."""
    rows = torch.randperm(len(data[1]))
    return Dataset(tuple(part[rows] for part in data), user_id=str(user))


def job(work: Work, rounds: int, workers: int) -> Trained:
    """Train, and note when each round ends; the first one, which pfl evaluates, is the warm-up."""
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # pfl sends no weights at the start: every process must begin with the same
        module = Module(work.network())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    start, data = copies(module.parameters()), work.data()
    users = get_user_sampler("minimize_reuse", list(range(work.clients)))
    federated = FederatedDataset(lambda user: _shuffled(data[user], user), users)
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(rounds, rounds + 1, work.clients, None),
        backend=SimulatedBackend(federated, federated, [WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(work.batch, 1, work.lr),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return Trained(clock.moments, start, copies(module.parameters()))
