"""The cases of `agreement.py` on fluke: `python -m peer_jobs.agreement_fluke FOLDER`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

# PyPI's torchvision finds its operators with a CUDA torch only; fluke imports it, and this job uses none of them.
OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
if torch.version.cuda is None and sys.platform == "linux":
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms import PersonalizedFL  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.nets import EncoderHeadNet  # noqa: E402

CLASSES = 3


def network(start: Any) -> EncoderHeadNet:
    """The network at the given weights."""
    features, inputs = start["arr_0"].shape
    model = EncoderHeadNet(nn.Sequential(nn.Linear(inputs, features), nn.Tanh()), nn.Linear(features, CLASSES)).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.from_numpy(start[f"arr_{number}"]))
    return model


def train(job: dict[str, Any], common: dict[str, Any], folder: Path) -> list[Any]:
    """Train one case, and return the global model's parameters."""
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    data = np.load(folder / f"{job['data']}.npz")
    clients = len(data.files) // 2
    loaders = [
        FastDataLoader(
            torch.from_numpy(data[f"x{c}"]),
            torch.from_numpy(data[f"y{c}"]),
            num_labels=CLASSES,
            batch_size=job["batch"],
            shuffle=False,
        )
        for c in range(clients)
    ]
    module, _, name = job["method"].rpartition(".")
    method = getattr(importlib.import_module(f"fluke.algorithms.{module}"), name)
    personal = {"model": network(np.load(folder / "start.npz"))} if issubclass(method, PersonalizedFL) else {}
    settings = DDict(
        model=network(np.load(folder / "start.npz")),
        client=DDict(
            batch_size=job["batch"],
            local_epochs=common["epochs"],
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=common["lr"]),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
            **job["client"],
            **personal,
        ),
        server=DDict(weighted=True, **job["server"]),
    )
    container = DummyDataContainer(loaders, [None] * clients, None, CLASSES)
    federation = method(clients, DataSplitter(container), settings)
    federation.run(common["rounds"], eligible_perc=1.0)
    return [value.detach().numpy() for value in federation.server.model.parameters()]


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
