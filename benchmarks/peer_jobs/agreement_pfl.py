"""The cases of `agreement.py` on Apple's pfl: `python -m peer_jobs.agreement_pfl FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

CLASSES = 3


class Module(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, start: Any) -> None:
        super().__init__()
        features, inputs = start["arr_0"].shape
        self.body = nn.Sequential(nn.Linear(inputs, features), nn.Tanh())
        self.head = nn.Linear(features, CLASSES)
        self.double()
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(torch.from_numpy(start[f"arr_{number}"]))

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(inputs)), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(inputs, labels)) * len(labels), len(labels))}


def train(job: dict[str, Any], common: dict[str, Any], folder: Path) -> list[Any]:
    """Train one case, and return the global model's parameters."""
    data = np.load(folder / f"{job['data']}.npz")
    clients = len(data.files) // 2
    module = Module(np.load(folder / "start.npz"))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))

    def examples(user: int) -> Dataset:
        return Dataset((torch.from_numpy(data[f"x{user}"]), torch.from_numpy(data[f"y{user}"])), user_id=str(user))

    federated = FederatedDataset(examples, get_user_sampler("minimize_reuse", list(range(clients))))
    rounds = common["rounds"]
    shared = {
        "central_num_iterations": rounds,
        "evaluation_frequency": rounds + 1,
        "train_cohort_size": clients,
        "val_cohort_size": None,
    }
    proximal = job["method"] == "fedprox"
    params = FedProxParams(**shared, mu=job["client"]["mu"]) if proximal else NNAlgorithmParams(**shared)
    (FedProx() if proximal else FederatedAveraging()).run(
        algorithm_params=params,
        backend=SimulatedBackend(federated, federated, [WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(job["batch"], common["epochs"], common["lr"]),
        callbacks=[],
        send_metrics_to_platform=False,
    )
    return [value.detach().numpy() for value in module.parameters()]


def main() -> None:
    """Every case in turn; a case that fails leaves its message."""
    folder = Path(sys.argv[1])
    common = json.loads((folder / "jobs.json").read_text())
    for job in common["jobs"]:
        try:
            np.savez(folder / f"found{job['number']}.npz", *train(job, common, folder))
        except Exception as error:  # the peer's own code may raise anything
            (folder / f"error{job['number']}.txt").write_text(f"failed: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
