"""User functions that a configuration names as `module:function`, and permission to import them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedra.config.schema import AlgorithmSection, Config
from fedra.trust import allow_imports, import_error, is_import

SECTIONS = ("data", "public", "model", "algorithm")
"""Sections whose name may be `module:function`."""


def imported_names(config: Config, sections: Sequence[str] = SECTIONS) -> dict[str, str]:
    """Map configuration keys to the `module:function` names in them, without importing anything."""
    found: dict[str, str] = {}
    for key in sections:
        section = getattr(config, key)
        if isinstance(section, AlgorithmSection):
            found |= dict(_find_imports(section.model_dump(), key))
        elif section is not None and is_import(section.name):
            found[f"{key}.name"] = section.name
    return found


def _find_imports(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Find strings with a colon at any depth, because a part may be named wherever an algorithm may."""
    if isinstance(value, str) and is_import(value):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _find_imports(item, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_imports(item, key)


@contextmanager
def allow_trusted_imports(
    config: Config, trust: bool, where: str, sections: Sequence[str] = SECTIONS
) -> Iterator[None]:
    """Allow imports of `module:function` names inside the block if `trust` is set, and raise at once otherwise."""
    names = imported_names(config, sections)
    if names and not trust:
        raise import_error(list(names.values()), where)
    with allow_imports(trust):
        yield
