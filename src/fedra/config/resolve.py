"""Resolve a configuration as its run records it: names checked and defaults written out."""

from __future__ import annotations

import tomllib
from typing import Any

from fedra.config import reading
from fedra.config.imports import imported_names
from fedra.config.mode import without_federation
from fedra.config.names import REGISTRIES, build_algorithm, expand_algorithm, expand_schedule, with_defaults
from fedra.config.schema import OBJECT, Config, NamedSection
from fedra.errors import ConfigError
from fedra.models import hash_weights

IRRELEVANT = frozenset({"runner", "device", "checkpoint", "log", "sweep"})
"""Sections that no result depends on: those of the machine, of checkpoints and of sweeps."""


def resolve_defaults(config: Config, *, skip_imports: bool = False) -> Config:
    """Check every name and field, and write out the defaults of everything that the configuration names.

    With `skip_imports`, nothing is imported: a section that names a `module:function` stays as it is.
    """
    config = without_federation(config)
    skipped = {key.partition(".")[0] for key in imported_names(config)} if skip_imports else set()
    found: dict[str, Any] = {}
    if "algorithm" not in skipped and config.algorithm.name != OBJECT:
        build_algorithm(config.algorithm)
        found["algorithm"] = expand_algorithm(config.algorithm)
    for name, registry in REGISTRIES.items():
        section: NamedSection | None = getattr(config, name)
        if section is None or name in (*skipped, "algorithm") or section.name == OBJECT:
            continue
        registry.settings(section.name, section.settings)
        found[name] = {**section.model_dump(), **with_defaults(registry[section.name], section.settings)}
    found["local"] = {**config.local.model_dump(), "schedule": expand_schedule(config.local.schedule)}
    return Config.model_validate({**config.model_dump(), **found})


def record_weights_digest(config: Config) -> Config:
    """Add the digest of the weights file that the run starts from, if there is one."""
    section = config.model
    if section.weights is None or section.weights_digest is not None:
        return config
    known = section.model_copy(update={"weights_digest": hash_weights(section.weights)})
    return config.model_copy(update={"model": known})


def comparable(config: Config) -> Config:
    """Return a configuration with the settings that a result depends on and all of their defaults."""
    kept = reading.read(config.model_dump(exclude=set(IRRELEVANT)))
    return resolve_defaults(kept, skip_imports=True)


def have_same_settings(recorded: Config, wanted: Config) -> bool:
    """Return whether a recorded run has the settings of a configuration that a result depends on.

    A field that did not exist when the run was recorded counts with its default; one that no longer exists differs. The
    precision `auto` is the one that the run chose.
    """
    if wanted.precision == "auto":
        wanted = wanted.model_copy(update={"precision": recorded.precision})
    try:
        first, second = (tomllib.loads(reading.write(comparable(config))) for config in (recorded, wanted))
    except ConfigError:
        return False
    return first == second
