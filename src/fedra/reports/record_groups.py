"""Groups of recorded runs that differ only in their seed, with the mean and spread over seeds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedra.reports.run_record import RunRecord
from fedra.reports.seed_groups import group_settings


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
    groups = group_settings([run.title if run.config else run.name for run in runs], [run.config for run in runs])
    return [
        RunGroup(label, number, tuple(runs[position] for position in members))
        for number, (label, members) in enumerate(groups.items())
    ]
