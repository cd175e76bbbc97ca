"""Build algorithms, parts, losses and schedules from the names in a configuration, and write them back."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from datetime import date, time
from functools import partial
from typing import Any, get_args

from fedra.algorithms import ALGORITHMS
from fedra.config import schema as sections
from fedra.config.overrides import parse_value
from fedra.core.algorithm import Algorithm
from fedra.core.part import Part, find_part, known_parts
from fedra.core.rates import SCHEDULES, RateSchedule
from fedra.data import DATASETS
from fedra.data.partition import PARTITIONS
from fedra.errors import ConfigError, nearest
from fedra.losses import LOSSES
from fedra.losses.angular_loss import AngularLoss
from fedra.models import MODELS
from fedra.registry import Field, Registry, checked, class_fields, fields
from fedra.runners import RUNNERS
from fedra.trust import is_import

REGISTRIES: dict[str, Registry] = {
    "data": DATASETS,
    "public": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "algorithm": ALGORITHMS,
    "runner": RUNNERS,
}
"""Sections that have a name, and the registry of that name."""

PART_EXAMPLE = "{ name = 'proximal', mu = 0.1 }"
SCHEDULE_EXAMPLE = "{ name = 'cosine', warmup = 5 }"


def build_algorithm(section: sections.AlgorithmSection) -> Algorithm:
    """Build the algorithm of a section with all its parts."""
    algorithm = _build_algorithm(section.name, section.settings)
    return algorithm.plus(*(_build_part(extra, "algorithm.plus") for extra in section.plus))


def build_schedule(value: str | Mapping[str, Any]) -> RateSchedule:
    """Build the named learning-rate schedule as a partial, which can be pickled for worker processes."""
    name = _read_name(value, "local.schedule", SCHEDULE_EXAMPLE)
    return partial(SCHEDULES[name], **SCHEDULES.settings(name, _settings(value)))


def expand_schedule(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the schedule as a table with every default."""
    name = _read_name(value, "local.schedule", SCHEDULE_EXAMPLE)
    return {"name": name, **with_defaults(SCHEDULES[name], SCHEDULES.settings(name, _settings(value)))}


def _build_algorithm(name: str, settings: Mapping[str, Any]) -> Algorithm:
    given = checked(f"the algorithm '{name}'", fields(ALGORITHMS[name]), settings, _to_part)
    result = ALGORITHMS.call(name, {}, given)
    if not isinstance(result, Algorithm):
        raise ConfigError(f"the algorithm '{name}' must return a fedra Algorithm, got a {type(result).__name__}")
    return result


def _to_part(field: Field, value: Any) -> Any:
    """Build the part or loss of a field from a name, or from a table with a name and fields."""
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if inspect.isclass(kind)]
    if any(issubclass(kind, AngularLoss) for kind in kinds) and isinstance(value, str | Mapping):
        return _build_loss(value, field.name)
    part_types = [kind for kind in kinds if issubclass(kind, Part)]
    if not part_types or not isinstance(value, str | Mapping):
        return value
    part = _build_part(value, field.name)
    if not isinstance(part, tuple(part_types)):
        name = _read_name(value, field.name)
        raise ConfigError(f"the field '{field.name}' must be a {part_types[0].__name__}, got '{name}'")
    return part


def _build_part(value: str | Mapping[str, Any], where: str) -> Part | Algorithm:
    """Build the part or algorithm that `value` names."""
    name = _read_name(value, where)
    settings = _settings(value)
    if name in ALGORITHMS or is_import(name):
        return _build_algorithm(name, settings)
    kind = find_part(name)
    if kind is None:
        raise ConfigError(f"{where}: there is no part '{name}': {nearest(name, [*known_parts(), *ALGORITHMS])}")
    return kind(**checked(f"the part '{name}'", class_fields(kind), settings, _to_part))


def _build_loss(value: str | Mapping[str, Any], where: str) -> AngularLoss:
    """Build the margin loss that `value` names."""
    name = _read_name(value, where)
    settings = _settings(value)
    kind = LOSSES[name]
    loss: AngularLoss = kind(**checked(f"the loss '{name}'", class_fields(kind), settings))
    return loss


def read_loss(word: str) -> AngularLoss:
    """Build the margin loss from a word such as `arcface:margin=0.4,scale=32`."""
    name, settings = read_word(word)
    return _build_loss({**settings, "name": name}, word)


def read_word(word: str) -> tuple[str, dict[str, Any]]:
    """Split a word such as `arcface:margin=0.4,scale=32` into its name and its fields."""
    name, _, rest = word.partition(":")
    settings = {}
    for pair in rest.split(",") if rest else ():
        field, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(
                f"fields must have the form field=value, such as arcface:margin=0.4, got '{pair}' in '{word}'"
            )
        settings[field.strip()] = parse_value(text.strip())
    return name, settings


def _read_name(value: str | Mapping[str, Any], where: str, example: str = PART_EXAMPLE) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value.get("name"), str):
        raise ConfigError(f"{where} must have a name, such as {example}, got {dict(value)!r}")
    return str(value["name"])


def _settings(value: str | Mapping[str, Any]) -> dict[str, Any]:
    return {} if isinstance(value, str) else {key: item for key, item in value.items() if key != "name"}


def expand_algorithm(section: sections.AlgorithmSection) -> dict[str, Any]:
    """Return the [algorithm] section with every default written out, so a run can be repeated after defaults change."""
    plus = [_expand_part(extra) for extra in section.plus]
    return {"name": section.name, "plus": plus, **with_defaults(ALGORITHMS[section.name], section.settings)}


def with_defaults(function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of `function`, given or default, as a configuration writes them, without None."""
    known = fields(function)
    values = {name: field.default for name, field in known.items() if not field.required} | dict(settings)
    plain = {name: _to_plain(_to_part(known[name], value)) for name, value in values.items()}
    for name, value in plain.items():
        if not isinstance(value, str | int | float | list | Mapping | date | time | None):
            raise ConfigError(
                f"the field '{name}' must be a number, a string, a list or a table, which a configuration can record, "
                f"got {value!r}"
            )
    return {name: value for name, value in plain.items() if value is not None}


def _expand_part(value: str | Mapping[str, Any]) -> dict[str, Any]:
    name, settings = _read_name(value, "algorithm.plus"), _settings(value)
    if name in ALGORITHMS or is_import(name):
        return {"name": name, **with_defaults(ALGORITHMS[name], settings)}
    full: dict[str, Any] = _to_plain(_build_part(value, "algorithm.plus"))
    return full


def _to_plain(value: Any) -> Any:
    """Convert parts and losses to tables, tuples to lists and paths to strings; return other values unchanged."""
    if isinstance(value, Part):
        return {"name": value.name} | _fields_of(value)
    if isinstance(value, AngularLoss):
        return {"name": next(name for name in LOSSES if LOSSES[name] is type(value))} | _fields_of(value)
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _fields_of(value: Any) -> dict[str, Any]:
    plain = {item.name: _to_plain(getattr(value, item.name)) for item in dataclass_fields(value)}
    return {name: item for name, item in plain.items() if item is not None}
