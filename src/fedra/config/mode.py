"""Centralized runs: how to recognize them and which federation settings they ignore."""

from __future__ import annotations

from typing import Any

from fedra.config.schema import OBJECT, CohortSection, Config, DiagnosticsSection, FaultsSection, RunnerSection
from fedra.errors import ConfigError

NAME = "centralized"


def is_centralized(config: Config) -> bool:
    """Return whether the run trains one model on the pooled examples of all clients."""
    return config.mode == NAME


def title(config: Config) -> str:
    """Return the name of a run in tables and plots: its algorithm and what is added, marked if it is centralized."""
    name = config.algorithm.settings["label"] if config.algorithm.name == OBJECT else config.algorithm.name
    added = [part if isinstance(part, str) else str(part.get("name")) for part in config.algorithm.plus]
    name = " + ".join([name, *added])
    if not is_centralized(config):
        return name
    return NAME if name == "fedavg" else f"{NAME} ({name})"


def without_federation(config: Config) -> Config:
    """Return the configuration with every client setting reset if the run is centralized."""
    if not is_centralized(config):
        if config.runner.name == NAME:
            raise ConfigError(
                f"runner.name must not be '{NAME}', which is a mode: set mode = '{NAME}' and remove runner.name"
            )
        return config
    settings = config.runner.settings if config.runner.name in ("auto", NAME) else {}
    return config.model_copy(
        update={
            "runner": RunnerSection(name=NAME, **settings),
            "local": config.local.model_copy(update={"epochs": 1}),
            "cohort": CohortSection(),
            "faults": FaultsSection(retries=0),  # repeating the same epoch fails in the same way
            "diagnostics": DiagnosticsSection(classes=config.diagnostics.classes),
        }
    )


def notice(config: Config) -> str | None:
    """Return the line that lists the settings that a centralized run ignores, or None for a federated run."""
    if not is_centralized(config):
        return None
    effective, default = without_federation(config), Config()
    ignored = [
        f"{section}.{key} = {value}"
        for section in ("local", "cohort", "faults", "diagnostics")
        for key, value in _changed_keys(getattr(config, section), getattr(default, section))
        if value != getattr(getattr(effective, section), key)
    ]
    unused = f"; {', '.join(ignored)} {'does' if len(ignored) == 1 else 'do'} not apply" if ignored else ""
    return f"{NAME}: one model on the pooled examples of all clients, one round is one epoch{unused}"


def _changed_keys(section: Any, default: Any) -> list[tuple[str, Any]]:
    """Return the keys of a section that differ from their defaults, with their values."""
    return [(key, value) for key, value in section if value != getattr(default, key)]
