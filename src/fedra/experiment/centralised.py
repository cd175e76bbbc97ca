"""Centralised runs: what of a federation's configuration does not apply to them, and how they are told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedra.core.job import Job
from fedra.data.clients import OwnClients, PooledClients
from fedra.experiment.config import Config
from fedra.experiment.sections import Cohort, Diagnostics, Faults
from fedra.runners import Runner
from fedra.runners.centralised import CentralisedRunner, refuse_federated_parts

NAME = "centralised"


def is_centralised(config: Config) -> bool:
    """Whether the run has no clients."""
    return config.runner.name == NAME


def title(config: Config) -> str:
    """What a run is called in tables and curves: its algorithm, unless it is centralised."""
    name = config.algorithm.name
    if not is_centralised(config):
        return name
    return NAME if name == "fedavg" else f"{NAME} ({name})"


def without_federation(config: Config) -> Config:
    """The configuration as a centralised run takes it: everything that speaks of clients at its neutral value."""
    if not is_centralised(config):
        return config
    return config.model_copy(
        update={
            "local": config.local.model_copy(update={"epochs": 1}),
            "cohort": Cohort(),
            "faults": Faults(retries=0),  # the same epoch would only fail again
            "diagnostics": Diagnostics(classes=config.diagnostics.classes),
        }
    )


def notice(config: Config) -> str | None:
    """The line that says what does not apply to a centralised run, of what the configuration sets."""
    if not is_centralised(config):
        return None
    taken, usual = without_federation(config), Config()
    ignored = [
        f"{section}.{key} = {value}"
        for section in ("local", "cohort", "faults", "diagnostics")
        for key, value in _set(getattr(config, section), getattr(usual, section))
        if value != getattr(getattr(taken, section), key)
    ]
    told = f"; {', '.join(ignored)} {'does' if len(ignored) == 1 else 'do'} not apply" if ignored else ""
    return f"{NAME}: one model on the pooled examples of all clients, a round is one epoch{told}"


def _set(section: Any, usual: Any) -> list[tuple[str, Any]]:
    """The keys of a section that differ from their defaults."""
    return [(key, value) for key, value in section if value != getattr(usual, key)]


def together(job: Job, clients: PooledClients | OwnClients) -> Job:
    """The job with all clients' examples in one pool that is gone over once a round."""
    refuse_federated_parts(job.algorithm)
    schedule = replace(job.local.schedule, epochs=1)
    return replace(job, clients=clients.together(), local=replace(job.local, schedule=schedule))


def ticks(runner: Runner, cohort: int) -> int:
    """How often the bar moves within a round: with every client or, where there is one pool, with every step."""
    return runner.steps if isinstance(runner, CentralisedRunner) else cohort


def watched(runner: Runner, tick: Callable[[], None]) -> Callable[[], None]:
    """What to call for every client so that the bar moves as `ticks` says."""
    if not isinstance(runner, CentralisedRunner):
        return tick
    runner.on_step = tick
    return lambda: None
