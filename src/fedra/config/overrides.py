"""Overrides of configuration keys: `key.sub=value`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from fedra.config.schema import SECTION_TYPES
from fedra.errors import ConfigError, shorten
from fedra.trust import is_import

Change = tuple[Sequence[str], Any, str]
"""The path to a key, its new value, and how error messages refer to the change."""

PER_CLIENT = "rounds_per_client"
"""The key of [cohort] from which the number of rounds follows."""


def parse_value(text: str) -> Any:
    """Parse a value as TOML, and treat bare words as strings."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError):
        raise ConfigError(
            f"a value must be a number of fewer than 4300 digits, a text, or a table of few levels, got {shorten(text)}"
        ) from None


def parse_override(word: str) -> Change:
    """Parse an override of the form `key.sub=value`."""
    path, equals, text = word.partition("=")
    steps = path.strip().split(".")
    if not equals or not all(steps):
        raise ConfigError(f"an override must have the form key.sub=value, such as local.epochs=5, got '{word}'")
    return steps, parse_value(text.strip()), f"the override '{word}'"


def apply_changes(table: dict[str, Any], changes: Iterable[Change]) -> None:
    """Set keys of a configuration table in order: a table replaces a whole section, a string only its name.

    When a section's name changes, fields that `table` sets for the old name and that the new one does not have are
    dropped. The section's own keys (`partition.clients`, `algorithm.plus`) and fields that the changes set stay.
    A change of `rounds` removes `cohort.rounds_per_client`, from which `rounds` would follow, and the reverse.
    """
    _spell_out_names(table)
    old = {key: dict(value) for key, value in table.items() if key in SECTION_TYPES and isinstance(value, dict)}
    changed: set[tuple[str, ...]] = set()
    for steps, value, what in changes:
        is_name = len(steps) == 1 and steps[0] in SECTION_TYPES and isinstance(value, str)
        path = (*steps, "name") if is_name else steps
        _assign(table, path, value, what)
        changed.add(tuple(path[:2]))
    for section, before in old.items():
        after = table.get(section)
        if isinstance(after, dict) and after.get("name") != before.get("name") and (section, "name") in changed:
            valid = {key for key in before if (section, key) in changed or _has_field(section, after["name"], key)}
            table[section] = {key: value for key, value in after.items() if key in valid or key not in before}
    _choose_rounds(table, changed)


def _choose_rounds(table: dict[str, Any], changed: set[tuple[str, ...]]) -> None:
    """Remove the one of `rounds` and `cohort.rounds_per_client` that the changes replace; if both changed, neither."""
    cohort = table.get("cohort")
    if not isinstance(cohort, dict) or cohort.get(PER_CLIENT) is None:
        return
    has_rounds, has_each = ("rounds",) in changed, bool({("cohort",), ("cohort", PER_CLIENT)} & changed)
    if has_each and not has_rounds:
        table.pop("rounds", None)
    elif has_rounds and not has_each:
        table["cohort"] = {key: value for key, value in cohort.items() if key != PER_CLIENT}


def _spell_out_names(table: dict[str, Any]) -> None:
    for section in SECTION_TYPES:
        if isinstance(table.get(section), str):
            table[section] = {"name": table[section]}


def _has_field(section: str, name: Any, key: str) -> bool:
    """Return whether a key belongs to the section or is a field of `name`; fields of an import are unknown."""
    if key in SECTION_TYPES[section].model_fields:
        return True
    from fedra.config.names import REGISTRIES
    from fedra.registry import fields

    registry = REGISTRIES[section]
    if not isinstance(name, str) or (is_import(name) and registry.imports):
        return False
    return key in fields(registry[name])


def _assign(table: dict[str, Any], steps: Sequence[str], value: Any, what: str) -> None:
    """Set a value at a path, creating missing sections; `what` is the subject of an error message."""
    node = table
    for step in steps[:-1]:
        if node.get(step) is None:
            node[step] = {}
        node = node[step]
        if not isinstance(node, dict):
            raise ConfigError(f"{what} must name a key of a section, but '{step}' is a single value")
    node[steps[-1]] = deepcopy(value)  # a later change must not reach into what the caller holds
