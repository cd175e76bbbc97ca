"""Words that change a configuration: `key.sub=value`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from fedra.config.schema import SECTION_TYPES
from fedra.errors import ConfigError
from fedra.trust import is_import

Change = tuple[Sequence[str], Any, str]
"""The steps to a key, its new value, and how a sentence about a mistake begins."""


def parse_value(text: str) -> Any:
    """A value as TOML reads it; bare words are strings."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse_override(word: str) -> Change:
    """The change that a word `key.sub=value` asks for."""
    path, equals, text = word.partition("=")
    steps = path.strip().split(".")
    if not equals or not all(steps):
        raise ConfigError(f"the override '{word}' is not of the form key.sub=value, such as local.epochs=5")
    return steps, parse_value(text.strip()), f"the override '{word}'"


def apply_changes(table: dict[str, Any], changes: Iterable[Change]) -> None:
    """Set keys of a configuration's table in order; an inline table replaces a whole section, a bare name its name.

    Another name drops the fields that `table` sets for the old one and the new one does not have; the section's own
    keys (`partition.clients`, `algorithm.plus`) and fields that the changes set themselves stay.
    """
    _spell_out_names(table)
    old = {key: dict(value) for key, value in table.items() if key in SECTION_TYPES and isinstance(value, dict)}
    changed: set[tuple[str, ...]] = set()
    for steps, value, what in changes:
        place = (*steps, "name") if len(steps) == 1 and steps[0] in SECTION_TYPES and isinstance(value, str) else steps
        _assign(table, place, value, what)
        changed.add(tuple(place[:2]))
    for section, before in old.items():
        after = table.get(section)
        if isinstance(after, dict) and after.get("name") != before.get("name") and (section, "name") in changed:
            kept = {key for key in before if (section, key) in changed or _has_field(section, after["name"], key)}
            table[section] = {key: value for key, value in after.items() if key in kept or key not in before}


def _spell_out_names(table: dict[str, Any]) -> None:
    for section in SECTION_TYPES:
        if isinstance(table.get(section), str):
            table[section] = {"name": table[section]}


def _has_field(section: str, name: Any, key: str) -> bool:
    """Whether a key is the section's own or a field of what `name` stands for; fields of an import are not known."""
    if key in SECTION_TYPES[section].model_fields:
        return True
    from fedra.config.names import REGISTRIES
    from fedra.registry import fields

    registry = REGISTRIES[section]
    if not isinstance(name, str) or (is_import(name) and registry.imports):
        return False
    return key in fields(registry[name])


def _assign(table: dict[str, Any], steps: Sequence[str], value: Any, what: str) -> None:
    """Put a value at a dotted place, making sections on the way; `what` starts the sentence of a mistake."""
    node = table
    for step in steps[:-1]:
        if node.get(step) is None:
            node[step] = {}
        node = node[step]
        if not isinstance(node, dict):
            raise ConfigError(f"{what} goes into '{step}', which is a single value, not a section")
    node[steps[-1]] = value
