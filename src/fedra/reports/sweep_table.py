"""Tables of a sweep's results."""

from __future__ import annotations

import csv
import io
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedra.config.schema import Config


@dataclass(frozen=True)
class Point:
    """One grid point: its settings, and one run per seed."""

    settings: tuple[tuple[str, Any], ...]
    runs: tuple[tuple[int, Config, Path], ...]

    @property
    def label(self) -> str:
        return ", ".join(f"{short(value)}" for _, value in self.settings) or "all"

    @property
    def is_validated(self) -> bool:
        """Whether the runs evaluate their rounds on a validation split."""
        return any(config.evaluation.validation > 0 for _, config, _ in self.runs)


@dataclass(frozen=True)
class Cell:
    """The result of a grid point: accuracies over its seeds in percent, where a failed run counts at chance level.

    `endings` describes how each failed run ended.
    """

    accuracies: tuple[float, ...]
    endings: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        """Number of failed runs."""
        return len(self.endings)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def deviation(self) -> float:
        """Sample standard deviation over seeds (divided by their number less one); 0 for one seed."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0

    def text(self) -> str:
        """Format as in papers: 64.13(0.46), without a deviation for one seed, followed by failures."""
        shown = f"{self.mean:.2f}" + (f"({self.deviation:.2f})" if len(self.accuracies) > 1 else "")
        return f"{shown}, {self.failures()}" if self.failed else shown

    def failures(self) -> str:
        """Describe the failed runs, such as "diverged in round 26" or "2 of 3 diverged in round 4"."""
        if len(self.accuracies) == 1:
            return "".join(self.endings)
        seeds = len(self.accuracies)
        return ", ".join(f"{count} of {seeds} {ending}" for ending, count in Counter(self.endings).items())


def short(value: Any) -> str:
    """Format a value as a label: a table by its name and fields, `plus` as a sum."""
    if isinstance(value, Mapping):
        rest = {key: item for key, item in value.items() if key not in ("name", "plus")}
        inside = ", ".join(f"{key}={short(item)}" for key, item in rest.items())
        name = str(value.get("name", ""))
        label = f"{name}({inside})" if inside and name else name or inside
        return " + ".join([label, *(short(item) for item in value.get("plus", ()))])
    if isinstance(value, list | tuple):
        return ",".join(short(item) for item in value)
    return str(value)


def table_rows(
    cells: list[tuple[Point, Cell]], grid: Mapping[str, Sequence[Any]], metric: str = "accuracy %"
) -> list[list[str]]:
    """Build the rows of the table; with two or more swept keys, the last one becomes columns."""
    if len(grid) < 2:
        heading = next(iter(grid), "run")
        several = any(len(cell.accuracies) > 1 for _, cell in cells)
        bounds = ["lowest", "highest"] if several else []
        return [[heading, metric, *bounds], *(_row(point, cell, several) for point, cell in cells)]
    *row_keys, column_key = grid
    columns = [short(value) for value in grid[column_key]]
    rows: dict[str, list[str]] = {}
    for point, cell in cells:
        label = ", ".join(short(value) for _, value in point.settings[:-1])
        rows.setdefault(label, []).append(cell.text())
    return [[f"{', '.join(row_keys)} \\ {column_key}", *columns], *([label, *texts] for label, texts in rows.items())]


def _row(point: Point, cell: Cell, several: bool) -> list[str]:
    bounds = [f"{bound(cell.accuracies):.2f}" for bound in (min, max)] if several else []
    return [point.label, cell.text(), *bounds]


def caption(cells: Sequence[tuple[Point, Cell]]) -> str | None:
    """Explain the numbers in parentheses and failed runs, or return None without either."""
    parts = []
    if any(len(cell.accuracies) > 1 for _, cell in cells):
        parts.append("mean(sample standard deviation) over seeds")
    if failed := sum(cell.failed for _, cell in cells):
        parts.append(f"{failed} failed run{'s' if failed > 1 else ''} counted at chance level")
    return "; ".join(parts) or None


def markdown(rows: list[list[str]]) -> str:
    """Format the table as Markdown."""
    rule = ["---"] + ["---:"] * (len(rows[0]) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])) + "\n"


def csv_text(cells: list[tuple[Point, Cell]], grid: Mapping[str, Sequence[Any]]) -> str:
    """Format one row per grid point as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*grid, "mean", "deviation", "seeds", "failed"])
    for point, cell in cells:
        values = [short(value) for _, value in point.settings]
        writer.writerow([*values, f"{cell.mean:.4f}", f"{cell.deviation:.4f}", len(cell.accuracies), cell.failed])
    return text.getvalue()


def cell_record(point: Point, cell: Cell) -> dict[str, Any]:
    """Return a grid point's entry of cells.json."""
    folders = [folder.name for _, _, folder in point.runs]
    return {
        "settings": dict(point.settings),
        "accuracies": cell.accuracies,
        "failed": cell.failed,
        "endings": cell.endings,
        "runs": folders,
    }
