"""Words that change a configuration: `key.sub=value`."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from fedra.errors import ConfigError


def parse_value(text: str) -> Any:
    """A value as TOML reads it; bare words are strings."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def override(table: dict[str, Any], word: str) -> None:
    """Set one dotted key by a word `key.sub=value`; a whole section may be replaced by an inline table."""
    path, equals, text = word.partition("=")
    steps = path.strip().split(".")
    if not equals or not all(steps):
        raise ConfigError(f"the override '{word}' is not of the form key.sub=value, such as local.epochs=5")
    assign(table, steps, parse_value(text.strip()), f"the override '{word}'")


def assign(table: dict[str, Any], steps: Sequence[str], value: Any, what: str) -> None:
    """Put a value at a dotted place, making sections on the way; `what` starts the sentence of a mistake."""
    node = table
    for step in steps[:-1]:
        node = node.setdefault(step, {})
        if not isinstance(node, dict):
            raise ConfigError(f"{what} goes into '{step}', which is a single value, not a section")
    node[steps[-1]] = value
