"""The job on fluke: one process (its federation is sequential) with all cores as threads on the CNN, one on the MLP."""

from __future__ import annotations

import sys
import time

import torch
from bare import CLASSES, Work

from peer_jobs.timing import Trained, copies

# PyPI's torchvision finds its operators with a CUDA torch only; fluke imports it, and this job uses none of them.
OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
if torch.version.cuda is None and sys.platform == "linux":
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402


class Clock(FederationObserver):  # type: ignore[misc]
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.moments = [time.perf_counter()]

    def end_round(self, round: int) -> None:
        self.moments.append(time.perf_counter())


def job(work: Work, rounds: int, workers: int) -> Trained:
    """Train, and note when each round ends."""
    torch.set_num_threads(workers if len(work.shape) == 3 else 1)  # on the tiny MLP threads only wait for each other
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    loaders = [FastDataLoader(*pair, num_labels=CLASSES, batch_size=work.batch, shuffle=True) for pair in work.data()]
    container = DummyDataContainer(loaders, [None] * work.clients, None, CLASSES)
    model = work.network()
    start = copies(model.parameters())
    settings = DDict(
        model=model,
        client=DDict(
            batch_size=work.batch,
            local_epochs=1,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=work.lr),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
        ),
        server=DDict(weighted=True),
    )
    clock = Clock()
    federation = FedAVG(work.clients, DataSplitter(container), settings)
    federation.set_callbacks(clock)
    federation.run(rounds, eligible_perc=1.0)
    return Trained(clock.moments, start, copies(federation.server.model.parameters()))
