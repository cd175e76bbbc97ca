"""The job on fedra: the CNN on the runner `processes`, one thread each; the MLP on `stacked`, as auto chooses."""

from __future__ import annotations

import time

import torch
from bare import Work
from stacked import job_of

from federation import Federation, cnn_job
from peer_jobs.timing import Trained


def _federation(work: Work, workers: int) -> Federation:
    if len(work.shape) == 3:
        return Federation(cnn_job(work), "processes", workers=workers)
    torch.set_num_threads(workers)
    inputs, targets = zip(*work.data(), strict=True)
    return Federation(job_of(torch.stack(inputs), torch.stack(targets), work.lr), "stacked")


def job(work: Work, rounds: int, workers: int) -> Trained:
    """Train, and note when each round ends."""
    federation = _federation(work, workers)
    start = federation.weights()
    moments = [time.perf_counter()]
    for _ in range(rounds):
        federation()
        moments.append(time.perf_counter())
    federation.close()
    return Trained(moments, start, federation.weights())
