"""Groups of runs that differ only in their seed, their labels, and the mean and spread over seeds."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedra.reports.run_record import RunRecord
from fedra.reports.sweep_table import short

NEUTRAL = ("seed", "sweep", "runner", "checkpoint", "log", "memory")
"""Keys of the configuration that do not make another setting."""


@dataclass(frozen=True)
class Spread:
    """Mean, sample standard deviation (None below two values) and number of values."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return None without values."""
        if not values:
            return None
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class RunGroup:
    """Runs of one setting; `number` chooses its color."""

    label: str
    number: int
    runs: tuple[RunRecord, ...]

    @property
    def counted(self) -> list[RunRecord]:
        """The finished runs, one of each seed: a repeated seed repeats the result and says nothing about the spread."""
        finished = [run for run in self.runs if run.status == "finished"]
        return list({run.seed if run.seed is not None else run.name: run for run in finished}.values())

    def spread(self, key: str) -> Spread | None:
        """Return the spread of a metric's final value over seeds."""
        values = (run.final(key) for run in self.counted)
        return Spread.of([value for value in values if value is not None])

    def mean_of(self, values: Sequence[float]) -> float | None:
        """Return the mean, or None without values."""
        return statistics.fmean(values) if values else None

    def note(self) -> str:
        """Return what is missing from the mean, such as "1 of 3 runs failed"."""
        others = Counter(run.status for run in self.runs if run.status != "finished")
        parts = [f"{count} of {len(self.runs)} {status}" for status, count in others.items()]
        repeated = sum(run.status == "finished" for run in self.runs) - len(self.counted)
        return ", ".join([*parts, *([f"{repeated} with a repeated seed"] if repeated else [])])


def group_records(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Group runs whose configurations differ only in the seed, in order; damaged ones without one stay alone."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        rest = {key: value for key, value in run.config.items() if key not in NEUTRAL}
        identity = json.dumps(rest, sort_keys=True, default=str) if run.config else f"damaged {run.name}"
        groups.setdefault(identity, []).append(run)
    labels = _labels([members[0] for members in groups.values()])
    return [
        RunGroup(label, number, tuple(members))
        for number, (label, members) in enumerate(zip(labels, groups.values(), strict=True))
    ]


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables by dotted key; lists stay whole."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _labels(runs: Sequence[RunRecord]) -> list[str]:
    """Return a label for each setting: its algorithm, and the settings in which it differs from others."""
    tables = [dict(flatten({k: v for k, v in run.config.items() if k not in NEUTRAL})) for run in runs]
    keys = [key for key in dict.fromkeys(key for table in tables for key in table) if _tells_apart(key, tables)]
    keys.sort(key=lambda key: not key.startswith("algorithm."))  # next to the algorithm's name
    endings = Counter(key.rpartition(".")[2] for key in keys)
    labels = []
    for run, table in zip(runs, tables, strict=True):
        parts = [run.title if run.config else run.name]
        for key in keys:
            if key in table and key not in ("algorithm.name", "mode"):
                ending = key.rpartition(".")[2]
                named = key.endswith(".name")
                text = short(table[key])
                parts.append(text if named else f"{ending if endings[ending] == 1 else key}={text or 'none'}")
        labels.append(", ".join(parts))
    return _number(labels)


def _tells_apart(key: str, tables: Sequence[Mapping[str, Any]]) -> bool:
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
