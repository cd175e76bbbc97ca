"""Defaults written out, names checked: a configuration as its run records it."""

from __future__ import annotations

from typing import Any

from fedra.config.imports import imported_names
from fedra.config.mode import without_federation
from fedra.config.names import REGISTRIES, build_algorithm, with_defaults, written_out, written_schedule
from fedra.config.schema import OBJECT, Config, NamedSection
from fedra.models import digest_of_weights


def resolve_defaults(config: Config, *, only_look: bool = False) -> Config:
    """The configuration with the defaults of everything it names written out, after a check of every name and field.

    With `only_look`, nothing is imported: a section that names a function of the user's own stays as it is.
    """
    config = without_federation(config)
    skipped = {key.partition(".")[0] for key in imported_names(config)} if only_look else set()
    found: dict[str, Any] = {}
    if "algorithm" not in skipped and config.algorithm.name != OBJECT:
        build_algorithm(config.algorithm)
        found["algorithm"] = written_out(config.algorithm)
    for name, registry in REGISTRIES.items():
        section: NamedSection | None = getattr(config, name)
        if section is None or name in (*skipped, "algorithm") or section.name == OBJECT:
            continue
        registry.settings(section.name, section.settings)
        found[name] = {**section.model_dump(), **with_defaults(registry[section.name], section.settings)}
    found["local"] = {**config.local.model_dump(), "schedule": written_schedule(config.local.schedule)}
    return Config.model_validate({**config.model_dump(), **found})


def mark_weights(config: Config) -> Config:
    """The configuration with the mark of the weights that it starts from, where it starts from any."""
    section = config.model
    if section.weights is None or section.weights_digest is not None:
        return config
    known = section.model_copy(update={"weights_digest": digest_of_weights(section.weights)})
    return config.model_copy(update={"model": known})
