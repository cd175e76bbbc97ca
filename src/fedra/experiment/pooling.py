"""Centralized runs: what of a federation's configuration does not apply to them, and how they are told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedra.core.job import Job
from fedra.data.clients import OwnClients, PooledClients
from fedra.runners import Runner
from fedra.runners.centralized import CentralizedRunner, refuse_federated_parts


def pool_clients(job: Job, clients: PooledClients | OwnClients) -> Job:
    """The job with all clients' examples in one pool that is gone over once a round."""
    refuse_federated_parts(job.algorithm)
    return replace(job, clients=clients.together(), local=replace(job.local, epochs=1))


def ticks(runner: Runner, cohort: int) -> int:
    """How often the bar moves within a round: with every client or, where there is one pool, with every step."""
    return runner.steps if isinstance(runner, CentralizedRunner) else cohort


def watch_steps(runner: Runner, tick: Callable[[], None]) -> Callable[[], None]:
    """What to call for every client so that the bar moves as `ticks` says."""
    if not isinstance(runner, CentralizedRunner):
        return tick
    runner.on_step = tick
    return lambda: None
