"""Centralized runs: pool the clients' examples, and report progress by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedra.core.job import Job
from fedra.data.clients import PooledClients, SeparateClients
from fedra.runners import Runner
from fedra.runners.centralized import CentralizedRunner, check_centralized


def pool_clients(job: Job, clients: PooledClients | SeparateClients) -> Job:
    """Pool the examples of all clients, with one epoch per round."""
    check_centralized(job.algorithm)
    return replace(job, clients=clients.together(), local=replace(job.local, epochs=1))


def ticks(runner: Runner, cohort: int) -> int:
    """Return the number of progress ticks in a round: one per client, or per step in centralized training."""
    return runner.steps if isinstance(runner, CentralizedRunner) else cohort


def watch_steps(runner: Runner, tick: Callable[[], None]) -> Callable[[], None]:
    """Return the function to call after each client for the progress ticks of `ticks`."""
    if not isinstance(runner, CentralizedRunner):
        return tick
    runner.on_step = tick
    return lambda: None
