"""Algorithms, parts, losses and schedules by their names: from a configuration's words to objects, and back."""

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
from fedra.core.part import Part, known_parts
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
"""The sections that have a name, and what the name stands for."""

NAMED_PART = "a part is given by its name, such as { name = 'proximal', mu = 0.1 }"
NAMED_SCHEDULE = "a schedule is given by its name, such as { name = 'cosine', warmup = 5 }"


def build_algorithm(section: sections.AlgorithmSection) -> Algorithm:
    """The algorithm with all its parts."""
    algorithm = _algorithm(section.name, section.settings)
    for extra in section.plus:
        algorithm = algorithm.plus(_named(extra, "algorithm.plus"))
    return algorithm


def build_schedule(value: str | Mapping[str, Any]) -> RateSchedule:
    """The learning-rate schedule of that name with its fields set; a partial, which travels between processes."""
    name = _name(value, "local.schedule", NAMED_SCHEDULE)
    return partial(SCHEDULES[name], **SCHEDULES.settings(name, _settings(value)))


def written_schedule(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """The schedule as a table with every default."""
    name = _name(value, "local.schedule", NAMED_SCHEDULE)
    return {"name": name, **with_defaults(SCHEDULES[name], SCHEDULES.settings(name, _settings(value)))}


def _algorithm(name: str, settings: Mapping[str, Any]) -> Algorithm:
    given = checked(f"the algorithm '{name}'", fields(ALGORITHMS[name]), settings, _to_part)
    result = ALGORITHMS.call(name, {}, given)
    if not isinstance(result, Algorithm):
        raise ConfigError(
            f"the algorithm '{name}' returned a {type(result).__name__}: it must return a fedra Algorithm"
        )
    return result


def _to_part(field: Field, value: Any) -> Any:
    """A field that wants a part may be given the part's name, or a table with its name and fields."""
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if inspect.isclass(kind)]
    if any(issubclass(kind, AngularLoss) for kind in kinds) and isinstance(value, str | Mapping):
        return _loss(value, field.name)
    wanted = [kind for kind in kinds if issubclass(kind, Part)]
    if not wanted or not isinstance(value, str | Mapping):
        return value
    part = _named(value, field.name)
    if not isinstance(part, tuple(wanted)):
        kind = wanted[0].__name__
        raise ConfigError(f"'{_name(value, field.name)}' is no {kind} and cannot be the field '{field.name}'")
    return part


def _named(value: str | Mapping[str, Any], where: str) -> Part | Algorithm:
    """The part or algorithm of that name."""
    name = _name(value, where)
    settings = _settings(value)
    if name in ALGORITHMS or is_import(name):
        return _algorithm(name, settings)
    known = known_parts()
    if name not in known:
        raise ConfigError(f"{where}: there is no part '{name}': {nearest(name, [*known, *ALGORITHMS])}")
    kind = known[name]
    return kind(**checked(f"the part '{name}'", class_fields(kind), settings, _to_part))


def _loss(value: str | Mapping[str, Any], where: str) -> AngularLoss:
    """The margin loss of that name."""
    name = _name(value, where)
    settings = _settings(value)
    kind = LOSSES[name]
    loss: AngularLoss = kind(**checked(f"the loss '{name}'", class_fields(kind), settings))
    return loss


def read_loss(word: str) -> AngularLoss:
    """The margin loss that one word names with its fields: `arcface:margin=0.4,scale=32`."""
    name, settings = read_word(word)
    return _loss({**settings, "name": name}, word)


def read_word(word: str) -> tuple[str, dict[str, Any]]:
    """A name and its fields in one word: `arcface:margin=0.4,scale=32`."""
    name, _, rest = word.partition(":")
    settings = {}
    for pair in rest.split(",") if rest else ():
        field, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"'{pair}' in '{word}' is not of the form field=value, such as arcface:margin=0.4")
        settings[field.strip()] = parse_value(text.strip())
    return name, settings


def _name(value: str | Mapping[str, Any], where: str, sentence: str = NAMED_PART) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value.get("name"), str):
        raise ConfigError(f"{where}: {sentence}")
    return str(value["name"])


def _settings(value: str | Mapping[str, Any]) -> dict[str, Any]:
    return {} if isinstance(value, str) else {key: item for key, item in value.items() if key != "name"}


def written_out(section: sections.AlgorithmSection) -> dict[str, Any]:
    """The [algorithm] section with every default of its recipe and of all parts, so that defaults may change later."""
    plus = [_full(extra) for extra in section.plus]
    return {"name": section.name, "plus": plus, **with_defaults(ALGORITHMS[section.name], section.settings)}


def with_defaults(function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a recipe, given or default, as a configuration writes them; None is left out."""
    known = fields(function)
    values = {name: field.default for name, field in known.items() if not field.required} | dict(settings)
    plain = {name: _written(_to_part(known[name], value)) for name, value in values.items()}
    for name, value in plain.items():
        if not isinstance(value, str | int | float | list | Mapping | date | time | None):
            raise ConfigError(
                f"the field '{name}' has the value {value!r}, which a configuration cannot record: use a number, a "
                "text, a list or a table"
            )
    return {name: value for name, value in plain.items() if value is not None}


def _full(value: str | Mapping[str, Any]) -> dict[str, Any]:
    name, settings = _name(value, "algorithm.plus"), _settings(value)
    if name in ALGORITHMS or is_import(name):
        return {"name": name, **with_defaults(ALGORITHMS[name], settings)}
    full: dict[str, Any] = _written(_named(value, "algorithm.plus"))
    return full


def _written(value: Any) -> Any:
    """A part or a loss as a table with its name and all its fields, several values as a list; others as they are."""
    if isinstance(value, Part):
        return {"name": value.name} | _fields_of(value)
    if isinstance(value, AngularLoss):
        return {"name": next(name for name in LOSSES if LOSSES[name] is type(value))} | _fields_of(value)
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _fields_of(value: Any) -> dict[str, Any]:
    plain = {item.name: _written(getattr(value, item.name)) for item in dataclass_fields(value)}
    return {name: item for name, item in plain.items() if item is not None}
