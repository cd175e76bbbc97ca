"""Which functions of the user's own a configuration names, and the permission to import them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedra.config.schema import AlgorithmSection, Config
from fedra.trust import importing, is_import, refusal

SECTIONS = ("data", "public", "model", "algorithm")
"""The sections whose name may be `module:function`."""


def imported_names(config: Config, sections: Sequence[str] = SECTIONS) -> dict[str, str]:
    """Every `module:function` that the sections name, by its key; nothing is imported."""
    found: dict[str, str] = {}
    for key in sections:
        section = getattr(config, key)
        if isinstance(section, AlgorithmSection):
            found |= dict(_named_in(section.model_dump(), key))
        elif section is not None and is_import(section.name):
            found[f"{key}.name"] = section.name
    return found


def _named_in(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Texts with a colon, however deep: wherever a part may be named, an algorithm of the user's own may be too."""
    if isinstance(value, str) and is_import(value):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _named_in(item, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _named_in(item, key)


@contextmanager
def trusting(config: Config, trust: bool, where: str, sections: Sequence[str] = SECTIONS) -> Iterator[None]:
    """Import what the sections name within the block, if `trust` is set; refuse it here and now otherwise."""
    names = imported_names(config, sections)
    if names and not trust:
        raise refusal(list(names.values()), where)
    with importing(trust):
        yield
