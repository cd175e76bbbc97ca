"""Resolve a configuration as its run records it: names checked and defaults written out."""

from __future__ import annotations

from typing import Any

from fedra.config.imports import imported_names
from fedra.config.mode import without_federation
from fedra.config.names import REGISTRIES, build_algorithm, expand_algorithm, expand_schedule, with_defaults
from fedra.config.schema import OBJECT, Config, NamedSection
from fedra.models import hash_weights


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
