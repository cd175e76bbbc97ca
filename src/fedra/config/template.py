"""A new configuration file: the settings that were given, and around them every other key with its meaning."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import tomli_w
from pydantic import BaseModel

from fedra.config.reading import ZERO_MEANS_ALL
from fedra.config.resolve import resolve_defaults
from fedra.config.schema import Config, NamedSection

MAIN = ("data", "partition", "model", "algorithm", "local", "cohort", "evaluation")
"""Sections that are always written; the others only if one of their keys was given."""
WRITTEN_BY_FEDRA = {"model.weights_digest", "runner.auto"}
WIDTH = 100


def write_template(given: Config) -> str:
    """Return a commented TOML file with the given settings; other keys stand behind a # with their defaults.

    Args:
        given: The configuration, of which only the settings that were set are written without a #.

    Returns:
        The text of a file that reads back as the same configuration, also without any of the #.
    """
    whole = resolve_defaults(given, skip_imports=True)
    sections = [name for name in Config.model_fields if _is_section(name)]
    written = [name for name in sections if name in MAIN or _keys_of(given, name)]
    others = [name for name in sections if name not in written]
    lines = [
        "# A configuration of fedra. Keys behind a # have their defaults: remove the # to change them.",
        *_comment(f"Further sections, in docs/configuration.md: {', '.join(others)}."),
        "",
        *_lines("", whole, given.model_fields_set | {"rounds"}),
    ]
    for name in written:
        section = getattr(whole, name)
        summary = inspect.getdoc(type(section)) or ""
        lines += ["", *_comment(" ".join(summary.partition("\n\n")[0].split())), f"[{name}]"]
        lines += _lines(f"{name}.", section, _keys_of(given, name) | {"name"})
    return "\n".join(lines) + "\n"


def _is_section(name: str) -> bool:
    return Config.model_fields[name].description is None or name == "public"


def _keys_of(given: Config, section: str) -> set[str]:
    """Return the keys of a section that were given, and those of what it names."""
    found: BaseModel | None = getattr(given, section)
    if found is None or section not in given.model_fields_set:
        return set()
    return found.model_fields_set | (set(found.settings) if isinstance(found, NamedSection) else set())


def _lines(prefix: str, section: BaseModel, active: set[str]) -> Iterator[str]:
    """Yield every key of a section, after a comment that says what it means."""
    about = type(section).model_fields
    for key, value in section.model_dump().items():
        whole = f"{prefix}{key}"
        if whole in WRITTEN_BY_FEDRA or (not prefix and _is_section(key)):
            continue
        if key in about:
            yield from _comment(about[key].description or "")
        if value is None and tuple(whole.split(".")) in ZERO_MEANS_ALL:
            value = 0
        if value is None:
            yield f"# {key} is not set."
        else:
            yield f"{'' if key in active else '#'}{key} = {_to_toml(value)}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _to_toml(value: Any) -> str:
    """Return a value on one line; tomli_w would give a table lines of its own."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_to_key(key)} = {_to_toml(item)}" for key, item in value.items() if item is not None)
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_to_toml, value))}]"
    return tomli_w.dumps({"_": value}).removeprefix("_ = ").strip()


def _to_key(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")
