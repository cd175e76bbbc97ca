"""The job on fluke: one process (its federation is sequential) with all cores as threads."""

from __future__ import annotations

import time

import torch
from bare import CLASSES, Work, cnn
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver

from peer_jobs.timing import copies, gaps, must_differ


class Clock(FederationObserver):  # type: ignore[misc]
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.moments = [time.perf_counter()]

    def end_round(self, round: int) -> None:
        self.moments.append(time.perf_counter())


def job(work: Work, rounds: int, workers: int) -> list[float]:
    """Seconds of each round."""
    torch.set_num_threads(workers)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    loaders = [FastDataLoader(*pair, num_labels=CLASSES, batch_size=work.batch, shuffle=True) for pair in work.data()]
    container = DummyDataContainer(loaders, [None] * work.clients, None, CLASSES)
    model = cnn()
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
    must_differ(start, copies(federation.server.model.parameters()))
    return gaps(clock.moments)
