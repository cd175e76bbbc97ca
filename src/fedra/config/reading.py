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
from fedra.errors import ConfigError, nearest, shorten, shorten_requirement

LARGEST_FILE = 2**20
"""Bytes of a configuration file; the largest useful ones have a few thousand."""
DEEPEST = 16
"""How deep tables and arrays of a configuration may be nested."""
LONGEST_TEXT = 4096
"""Characters of one name, path or key."""

ZERO_MEANS_ALL = (("local", "batch"), ("partition", "clients"), ("evaluation", "tested"), ("evaluation", "impostors"))
"""Keys where None means all and is not the default; files write 0, because TOML has no null."""


def read(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Config:
    """Read a configuration from a TOML file (`-` reads standard input) or a dict, with `key.sub=value` overrides."""
    if isinstance(source, Mapping):
        table, where = copy.deepcopy(dict(source)), "the configuration"
    else:
        table, where = _load(source)
    words = list(overrides)
    apply_changes(table, [parse_override(word) for word in words])
    _check_size(table, where)
    return _validate(table, where, words)


def write(config: Config) -> str:
    """Return the complete configuration as TOML, from which the same run can be repeated."""
    table = config.model_dump()
    for section, key in ZERO_MEANS_ALL:
        table[section][key] = table[section][key] or 0
    return tomli_w.dumps(_without_none(table))


def _load(source: str | Path) -> tuple[dict[str, Any], str]:
    path = Path(source)
    where = "standard input" if str(source) == "-" else str(path)
    try:
        if str(source) == "-":
            given = getattr(sys.stdin, "buffer", None)  # its text may hide bytes that are not UTF-8
            text = sys.stdin.read(LARGEST_FILE + 1) if given is None else given.read(LARGEST_FILE + 1).decode("utf-8")
        else:
            with open(path, "rb") as file:  # a pipe or a device may never end
                text = file.read(LARGEST_FILE + 1).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"the configuration file '{path}' does not exist: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file '{where}' cannot be read: {error}") from None
    if len(text) > LARGEST_FILE:
        raise ConfigError(
            f"a configuration must have at most {LARGEST_FILE // 2**20} MB, got more from {where}: give a TOML file"
        )
    try:
        return tomllib.loads(text), where
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {str(error)[:1].lower()}{str(error)[1:]}") from None
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{where} must have numbers of fewer than 4300 digits, and tables nested at most {DEEPEST} deep"
        ) from None


def _check_size(value: Any, where: str, key: str = "", depth: int = 0) -> None:
    """Raise on text that is too long and on tables that are nested too deep for the code that follows."""
    if depth > DEEPEST:
        raise ConfigError(f"tables must be nested at most {DEEPEST} deep, got more in {where}")
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise ConfigError(
            f"{key[:80]} must have at most {LONGEST_TEXT} characters, got {len(value)} in {where}: shorten it"
        )
    if isinstance(value, dict):
        for name, item in value.items():
            _check_size(name, where, "a key", depth)
            _check_size(item, where, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_size(item, where, key, depth + 1)


def _validate(table: dict[str, Any], where: str, overrides: Sequence[str]) -> Config:
    for section, key in ZERO_MEANS_ALL:
        found = table.get(section)
        if isinstance(found, dict) and found.get(key) in (0, "all"):
            table = {**table, section: {**found, key: None}}
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_describe(error, where, overrides)) from None


def _describe(error: ValidationError, where: str, overrides: Sequence[str]) -> str:
    """Return the error message for the first invalid key."""
    first = error.errors()[0]
    if first["type"] == "two_rounds":
        return f"{first['msg']} in {where}: remove one of them"
    if first["type"] == "many_rounds":
        return f"{first['msg']} in {where}"
    steps = _key_path(first["loc"])
    key = ".".join(steps)
    unknown = first["type"] == "extra_forbidden"
    where = next((f"the override '{word}'" for word in reversed(overrides) if _sets(word, key, unknown)), where)
    if unknown:
        return f"unknown key '{key}' in {where}: {nearest(steps[-1], _keys(steps[:-1]))}"
    if first["type"] == "missing":
        return f"{key} must be set in {where}"
    requirement = "a table" if first["type"] == "model_type" else shorten_requirement(first["msg"])
    return f"{key} must be {requirement}, got {shorten(first['input'])} in {where}"


def _sets(override: str, key: str, unknown: bool) -> bool:
    """Return whether an override sets a key, itself or with its section; one that is unknown also by a key below it."""
    word = f"{override.partition('=')[0].strip()}."
    return f"{key}.".startswith(word) or (unknown and word.startswith(f"{key}."))


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
