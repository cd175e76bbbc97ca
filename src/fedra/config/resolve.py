"""Defaults written out, names checked: a configuration as its run records it."""

from __future__ import annotations

from typing import Any

from fedra.config.mode import without_federation
from fedra.config.names import build_algorithm, with_defaults, written_out, written_schedule
from fedra.config.schema import OBJECT, Config, NamedSection
from fedra.data import DATASETS
from fedra.data.partition import PARTITIONS
from fedra.models import MODELS, digest_of_weights
from fedra.runners import RUNNERS


def resolve_defaults(config: Config) -> Config:
    """The configuration with the defaults of everything it names written out, after a check of every name and field."""
    config = without_federation(config)
    told: dict[str, Any] = {}
    if config.algorithm.name != OBJECT:
        build_algorithm(config.algorithm)
        told["algorithm"] = written_out(config.algorithm)
    registries = {"data": DATASETS, "partition": PARTITIONS, "model": MODELS, "runner": RUNNERS}
    for name, registry in registries.items():
        section: NamedSection = getattr(config, name)
        if section.name == OBJECT:
            continue
        registry.settings(section.name, section.settings)
        told[name] = {**section.model_dump(), **with_defaults(registry[section.name], section.settings)}
    if config.public is not None:
        own = DATASETS.settings(config.public.name, config.public.settings)
        told["public"] = {"name": config.public.name, **with_defaults(DATASETS[config.public.name], own)}
    told["local"] = {**config.local.model_dump(), "schedule": written_schedule(config.local.schedule)}
    return Config.model_validate({**config.model_dump(), **told})


def mark_weights(config: Config) -> Config:
    """The configuration with the mark of the weights that it starts from, where it starts from any."""
    section = config.model
    if section.weights is None or section.weights_digest is not None:
        return config
    known = section.model_copy(update={"weights_digest": digest_of_weights(section.weights)})
    return config.model_copy(update={"model": known})
