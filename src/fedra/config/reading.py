"""The configuration of a run: TOML files and overrides, checked, with every default filled in."""

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
from fedra.errors import ConfigError, nearest

ALL = (("local", "batch"), ("partition", "clients"), ("evaluation", "tested"), ("evaluation", "impostors"))
"""Where None means all there is and is not the default: TOML, which has no null, says 0 there."""


def read(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Config:
    """The configuration in a TOML file (`-` reads standard input) or a dict, with `key.sub=value` overrides."""
    if isinstance(source, Mapping):
        table, where = copy.deepcopy(dict(source)), "the configuration"
    else:
        table, where = _load(source)
    apply_changes(table, [parse_override(word) for word in overrides])
    return _checked(table, where)


def write(config: Config) -> str:
    """The configuration as TOML, complete: reading it again gives the same run."""
    table = config.model_dump()
    for section, key in ALL:
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
            raise ConfigError(f"there is no configuration file '{path}': check the path, or write one") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the configuration file '{path}' cannot be read: {error}") from None
    try:
        return tomllib.loads(text), where
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {str(error)[:1].lower()}{str(error)[1:]}") from None


def _checked(table: dict[str, Any], where: str) -> Config:
    for section, key in ALL:
        found = table.get(section)
        if isinstance(found, dict) and found.get(key) in (0, "all"):
            table = {**table, section: {**found, key: None}}
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_sentence(error, where)) from None


def _sentence(error: ValidationError, where: str) -> str:
    first = error.errors()[0]
    steps = _place(first["loc"])
    key = ".".join(steps)
    if first["type"] == "extra_forbidden":
        return f"{where} has no key '{key}': {nearest(steps[-1], _keys(steps[:-1]))}"
    reason = first["msg"]
    return f"{where} cannot use {key} = {first['input']!r}: {reason[:1].lower()}{reason[1:]}"


def _place(location: Sequence[str | int]) -> list[str]:
    """The key a mistake is at: pydantic's place without the numbers of items and the kinds it tried."""
    return [str(step) for step in location[:2]]


def _keys(section: list[str]) -> list[str]:
    """The keys of a section, or of the whole configuration."""
    model: Any = Config
    for step in section:
        model = model.model_fields[step].annotation
    return list(model.model_fields)


def _without_none(value: Any) -> Any:
    """TOML has no null: a key that is None is left out, which reads back as None."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value
