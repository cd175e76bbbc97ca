"""The job on fedra: the runner `processes`, one thread each."""

from __future__ import annotations

import time

from bare import Work
from federation import Federation, cnn_job

from peer_jobs.timing import gaps


def job(work: Work, rounds: int, workers: int) -> list[float]:
    """Seconds of each round."""
    federation = Federation(cnn_job(work), "processes", workers=workers)
    moments = [time.perf_counter()]
    for _ in range(rounds):
        federation()
        moments.append(time.perf_counter())
    federation.close()
    return gaps(moments)
