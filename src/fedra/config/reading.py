"""Read and write run configurations: TOML files and overrides, validated, with every default filled in."""

from __future__ import annotations

import copy
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedra.config.overrides import apply_changes, parse_override
from fedra.config.schema import Config
from fedra.errors import ConfigError, nearest, shorten_requirement

ZERO_MEANS_ALL = (("local", "batch"), ("partition", "clients"), ("evaluation", "tested"), ("evaluation", "impostors"))
"""Keys where None means all and is not the default; files write 0, because TOML has no null."""


def read(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Config:
    """Read a configuration from a TOML file (`-` reads standard input) or a dict, with `key.sub=value` overrides."""
    if isinstance(source, Mapping):
        table, where = copy.deepcopy(dict(source)), "the configuration"
    else:
        table, where = _load(source)
    apply_changes(table, [parse_override(word) for word in overrides])
    return _validate(table, where)


def write(config: Config) -> str:
    """Return the complete configuration as TOML, from which the same run can be repeated."""
    table = config.model_dump()
    for section, key in ZERO_MEANS_ALL:
        table[section][key] = table[section][key] or 0
    return tomli_w.dumps(_without_none(table))


def _load(source: str | Path) -> tuple[dict[str, Any], str]:
    if str(source) == "-":
        text, where = sys.stdin.read(), "standard input"
    else:
        path = Path(source)
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"the configuration file '{path}' does not exist: check the path") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the configuration file '{path}' cannot be read: {error}") from None
    try:
        return tomllib.loads(text), where
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {str(error)[:1].lower()}{str(error)[1:]}") from None


def _validate(table: dict[str, Any], where: str) -> Config:
    for section, key in ZERO_MEANS_ALL:
        found = table.get(section)
        if isinstance(found, dict) and found.get(key) in (0, "all"):
            table = {**table, section: {**found, key: None}}
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_describe(error, where)) from None


def _describe(error: ValidationError, where: str) -> str:
    """Return the error message for the first invalid key."""
    first = error.errors()[0]
    if first["type"] == "two_rounds":
        return f"{first['msg']} in {where}: remove one of them"
    steps = _key_path(first["loc"])
    key = ".".join(steps)
    if first["type"] == "extra_forbidden":
        return f"unknown key '{key}' in {where}: {nearest(steps[-1], _keys(steps[:-1]))}"
    if first["type"] == "missing":
        return f"{key} must be set in {where}"
    requirement = "a table" if first["type"] == "model_type" else shorten_requirement(first["msg"])
    return f"{key} must be {requirement}, got {first['input']!r} in {where}"


def _key_path(location: Sequence[str | int]) -> list[str]:
    """Return the path of an invalid key: pydantic's location without item numbers and attempted types."""
    return [str(step) for step in location[:2]]


def _keys(section: list[str]) -> list[str]:
    """Return the keys of a section, or of the whole configuration."""
    model: Any = Config
    for step in section:
        model = model.model_fields[step].annotation
    return list(model.model_fields)


def _without_none(value: Any) -> Any:
    """Drop keys that are None, because TOML has no null and a missing key reads back as None."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value
