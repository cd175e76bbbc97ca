"""Which configurations are one setting, run with several seeds, and how settings are labeled."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedra.reports.sweep_table import short

NEUTRAL = ("seed", "sweep", "runner", "device", "checkpoint", "log", "memory")
"""Keys of the configuration that do not make another setting."""

Table = Mapping[str, Any]


def group_settings(titles: Sequence[str], configs: Sequence[Table]) -> dict[str, list[int]]:
    """Group configurations that differ only in neutral keys, such as the seed.

    Args:
        titles: The name of each run's algorithm; of a run without a configuration, the run's own name.
        configs: The configuration of each run; an empty one is a setting of its own.

    Returns:
        The positions of each setting's runs by a label, in the order of the runs: the algorithm, and the keys in which
        the setting differs from others.

    Example:
        >>> group_settings(["fedavg", "fedavg"], [{"seed": 0, "rounds": 5}, {"seed": 1, "rounds": 5}])
        {'fedavg': [0, 1]}
    """
    groups: dict[str, list[int]] = {}
    for position, (title, config) in enumerate(zip(titles, configs, strict=True)):
        rest = {key: value for key, value in config.items() if key not in NEUTRAL}
        identity = json.dumps(rest, sort_keys=True, default=str) if config else f"damaged {title}"
        groups.setdefault(identity, []).append(position)
    members = list(groups.values())
    labels = _labels([titles[group[0]] for group in members], [configs[group[0]] for group in members])
    return dict(zip(labels, members, strict=True))


def flatten(table: Table, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables by dotted key; lists stay whole."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _labels(titles: Sequence[str], configs: Sequence[Table]) -> list[str]:
    tables = [dict(flatten({k: v for k, v in config.items() if k not in NEUTRAL})) for config in configs]
    keys = [key for key in dict.fromkeys(key for table in tables for key in table) if _tells_apart(key, tables)]
    keys.sort(key=lambda key: not key.startswith("algorithm."))  # next to the algorithm's name
    endings = Counter(key.rpartition(".")[2] for key in keys)
    labels = []
    for title, table in zip(titles, tables, strict=True):
        parts = [title]
        for key in keys:
            if key in table and key not in ("algorithm.name", "mode"):
                ending = key.rpartition(".")[2]
                named = key.endswith(".name")
                text = short(table[key])
                parts.append(text if named else f"{ending if endings[ending] == 1 else key}={text or 'none'}")
        labels.append(", ".join(parts))
    return _number(labels)


def _tells_apart(key: str, tables: Sequence[Table]) -> bool:
    """Whether settings differ in a key; fields of what a section names are compared among equal names only."""
    name = f"{key.partition('.')[0]}.name"
    found: dict[str, set[str]] = {}
    for table in tables:
        value = json.dumps(table.get(key), sort_keys=True, default=str)
        found.setdefault("" if key == name else str(table.get(name)), set()).add(value)
    return any(len(values) > 1 for values in found.values())


def _number(labels: Sequence[str]) -> list[str]:
    """Number labels that are equal, as those of runs without a readable configuration may be."""
    counts, seen = Counter(labels), Counter[str]()
    numbered = []
    for label in labels:
        seen[label] += 1
        numbered.append(f"{label} ({seen[label]})" if counts[label] > 1 else label)
    return numbered
