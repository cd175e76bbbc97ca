"""`fedra.reproduce.reproduce`: run a table or figure, compare it with the paper, and decide the paper's claims."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.console import choose_console, tell
from fedra.errors import ConfigError, DataError
from fedra.experiment.summary import versions
from fedra.experiment.sweep import train_points
from fedra.reproduce.cell_values import read_value
from fedra.reproduce.drawing import draw_entry
from fedra.reproduce.entries import SIZES, PaperEntry
from fedra.reproduce.estimate import Estimate, estimate
from fedra.reproduce.paper_points import Grid, build_grid
from fedra.reproduce.verdicts import Verdict, decide
from fedra.storage.run_folder import RunFolder
from fedra.trust import allow_imports

OUT = Path("runs/reproduce")
"""Default output folder; entries in one folder share their runs."""


@dataclass(frozen=True)
class Reproduction:
    """A table or figure as it was run here.

    Args:
        entry: The entry.
        size: The size.
        seeds: Number of seeds.
        grid: The runs.
        values: For each cell one number per seed.
        verdicts: The outcome of each claim.
        estimated: What was estimated before the first run.
        seconds: Training time of all runs, as they recorded it.
        pictures: Files of the drawn figure.
        versions: Versions of fedra, Python, torch and NumPy.
    """

    entry: PaperEntry
    size: str
    seeds: int
    grid: Grid
    values: Mapping[tuple[str, str], list[float | None]]
    verdicts: tuple[Verdict, ...]
    estimated: Estimate
    seconds: float
    pictures: tuple[Path, ...]
    versions: Mapping[str, str]

    def metric(self, column: str) -> str:
        """Return the metric of a column."""
        return next(line.metric for line in self.grid.columns if line.name == column) or self.entry.metric

    def record(self) -> dict[str, Any]:
        """Return everything for JSON."""
        cells = [
            {
                "row": row,
                "column": column,
                "values": list(values),
                "paper": list(self.entry.printed.get((row, column), ())),
                "runs": [folder.name for _, _, folder in self.grid.cells[row, column]],
            }
            for (row, column), values in self.values.items()
        ]
        return {
            "paper": self.entry.paper,
            "entry": self.entry.name,
            "title": self.entry.title,
            "citation": self.entry.citation,
            "size": self.size,
            "seeds": self.seeds,
            "metric": self.entry.metric,
            "cells": cells,
            "claims": [verdict.record() for verdict in self.verdicts],
            "estimated_seconds": self.estimated.seconds,
            "seconds": self.seconds,
            "versions": dict(self.versions),
        }


@allow_imports()
def reproduce(
    entry: PaperEntry,
    size: str = "small",
    seeds: int = 3,
    out: Path | str = OUT,
    console: Console | None = None,
) -> Reproduction:
    """Run a table or figure and compare it with the paper; finished runs are not repeated.

    Args:
        entry: An entry that trains, from `find_entry`.
        size: "quick", "small", "medium" or "paper".
        seeds: Number of seeds per cell; the claims need at least three.
        out: Output folder for runs, pages and figures.
        console: Where progress is shown; standard error if it is a terminal, by default.

    Returns:
        The numbers next to the paper's, and a verdict for each of its claims.

    Example:
        >>> entry = find_entry("fedsol", "table6")
        >>> reproduce(entry, "small", seeds=3).verdicts[0].outcome
    """
    _check(entry, size)
    shown, folder = choose_console(console) or Console(quiet=True), Path(out)
    grid = build_grid(entry, size, seeds, folder)
    estimated = _prepare(entry, size, grid, shown)
    train_points(grid.points, shown)
    values = {
        (row, column): [read_value(path, _metric(entry, grid, column), config) for _, config, path in runs]
        for (row, column), runs in grid.cells.items()
    }
    verdicts = judge(entry, grid, values)
    pictures = draw_entry(entry, grid, values, folder, f"{entry.paper}-{entry.name}-{size}")
    seconds = sum(RunFolder(path).summary().get("seconds", 0.0) for path in grid.folders)
    return Reproduction(entry, size, seeds, grid, values, verdicts, estimated, seconds, tuple(pictures), versions())


def estimate_entry(
    entry: PaperEntry, size: str = "small", seeds: int = 3, out: Path | str = OUT, console: Console | None = None
) -> Estimate:
    """Estimate the time and memory of an entry without running it.

    Args:
        entry: An entry that trains.
        size: "quick", "small", "medium" or "paper".
        seeds: Number of seeds per cell.
        out: Output folder; runs in it that are finished cost nothing.
        console: Where the progress of the trials is shown.

    Returns:
        The estimate.

    Example:
        >>> print(estimate_entry(find_entry("fedgc", "table4"), "small", seeds=3))
    """
    _check(entry, size)
    grid = build_grid(entry, size, seeds, Path(out))
    return _estimate(entry, size, grid, choose_console(console))


def _check(entry: PaperEntry, size: str) -> None:
    if size not in SIZES:
        raise ConfigError(f"size must be one of {', '.join(SIZES)}, got '{size}'")
    if not entry.trains:
        raise ConfigError(f"an entry must train to be run, got '{entry.label}': {entry.command or entry.note}")
    if size not in entry.available:
        raise ConfigError(
            f"'{entry.label}' must have the size, got '{size}': choose one of {', '.join(entry.available)}"
        )
    if "tsne" in entry.draw.split() and importlib.util.find_spec("openTSNE") is None:
        raise ConfigError(f"openTSNE must be installed for '{entry.label}': pip install 'fedra[tsne]'")


def judge(entry: PaperEntry, grid: Grid, values: Mapping[tuple[str, str], list[float | None]]) -> tuple[Verdict, ...]:
    """Decide every claim of an entry from the values of its cells."""
    names = [column.name for column in grid.columns]
    positions = {column.name: column.at for column in grid.columns if column.at is not None}
    every = [column.name for column in entry.columns]
    return tuple(decide(claim, values, names, positions, every) for claim in entry.claims)


def _prepare(entry: PaperEntry, size: str, grid: Grid, console: Console) -> Estimate:
    """Train the run that others start from, then estimate the others."""
    if grid.first is not None:
        try:
            train_points([grid.first], console)
        except DataError as error:
            raise _missing(entry, size, error) from None
    estimated = _estimate(entry, size, grid, console)
    tell(console, f"{entry.label}, size {size}: {estimated}")
    return estimated


def _estimate(entry: PaperEntry, size: str, grid: Grid, console: Console | None) -> Estimate:
    """Estimate the runs; data that are not there are reported with what to supply."""
    runs = [run for point in grid.points for run in point.runs]
    first = grid.first.runs if grid.first is not None else ()
    if not all(RunFolder(folder).finished for _, _, folder in first):
        runs = list(first)  # the others start from their models
    try:
        return estimate(runs, console)
    except DataError as error:
        raise _missing(entry, size, error) from None


def _missing(entry: PaperEntry, size: str, error: DataError) -> DataError:
    supply = entry.sizes[size].supply
    needed = f"; this size needs {supply}" if supply else ""
    return DataError(f"'{entry.label}' cannot be run at size {size}: {error}{needed}")


def _metric(entry: PaperEntry, grid: Grid, column: str) -> str:
    return next(line.metric for line in grid.columns if line.name == column) or entry.metric
