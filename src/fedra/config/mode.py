"""Centralized runs: which settings of a federation do not apply to them, and how they are recognized."""

from __future__ import annotations

from typing import Any

from fedra.config.schema import OBJECT, CohortSection, Config, DiagnosticsSection, FaultsSection, RunnerSection
from fedra.errors import ConfigError

NAME = "centralized"


def is_centralized(config: Config) -> bool:
    """Whether the run trains one model on the pooled examples of all clients."""
    return config.mode == NAME


def title(config: Config) -> str:
    """What a run is called in tables and curves: its algorithm, unless it is centralized."""
    name = config.algorithm.settings["label"] if config.algorithm.name == OBJECT else config.algorithm.name
    if not is_centralized(config):
        return name
    return NAME if name == "fedavg" else f"{NAME} ({name})"


def without_federation(config: Config) -> Config:
    """The configuration as a centralized run takes it: everything that speaks of clients at its neutral value."""
    if not is_centralized(config):
        if config.runner.name == NAME:
            raise ConfigError(
                f"centralized training is a mode, not a runner: set mode = '{NAME}', and leave out runner.name"
            )
        return config
    settings = config.runner.settings if config.runner.name in ("auto", NAME) else {}
    return config.model_copy(
        update={
            "runner": RunnerSection(name=NAME, **settings),
            "local": config.local.model_copy(update={"epochs": 1}),
            "cohort": CohortSection(),
            "faults": FaultsSection(retries=0),  # the same epoch would only fail again
            "diagnostics": DiagnosticsSection(classes=config.diagnostics.classes),
        }
    )


def notice(config: Config) -> str | None:
    """The line that says what does not apply to a centralized run, of what the configuration sets."""
    if not is_centralized(config):
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
