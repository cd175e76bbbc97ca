"""The runs behind a table or figure: one grid point per cell, and one folder per distinct run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, cast

from fedra.config import reading as configuration
from fedra.config.overrides import apply_changes
from fedra.config.resolve import IRRELEVANT
from fedra.config.schema import Config
from fedra.reports.sweep_table import Point
from fedra.reproduce.entries import Line, PaperEntry, SizeSettings, config_path

RUNS = "runs"
"""Folder of the runs in the output folder; entries share them."""
LONGEST_NAME = 48


@dataclass(frozen=True)
class Grid:
    """The cells of an entry at a size.

    Args:
        rows: The rows.
        columns: The columns.
        cells: The runs of each cell (row, column): seed, configuration, folder.
        first: The run that the others start from, or one run per seed, if there are any.
    """

    rows: tuple[Line, ...]
    columns: tuple[Line, ...]
    cells: Mapping[tuple[str, str], tuple[tuple[int, Config, Path], ...]]
    first: Point | None = None

    @property
    def points(self) -> list[Point]:
        """One point per distinct configuration; cells that read different numbers off the same runs share it."""
        found: dict[Path, Point] = {}
        for (row, column), runs in self.cells.items():
            found.setdefault(runs[0][2], Point((("row", row), ("column", column)), runs))
        return list(found.values())

    @property
    def folders(self) -> list[Path]:
        """The folders of all runs."""
        before = [folder for _, _, folder in self.first.runs] if self.first else []
        return before + [folder for point in self.points for _, _, folder in point.runs]


def build_grid(entry: PaperEntry, size: str, seeds: int, out: Path) -> Grid:
    """Build the runs of an entry.

    Args:
        entry: A table or figure.
        size: "quick", "small", "medium" or "paper".
        seeds: Number of seeds per cell.
        out: Output folder.

    Returns:
        The grid, with checked configurations.
    """
    rows, columns = entry.lines(size)
    chosen = entry.sizes[size]
    before, starts = _first_runs(chosen, seeds, out)
    cells = {}
    for row in rows:
        for column in columns:
            if row.columns and column.name not in row.columns:
                continue
            table = configuration.read(config_path(column.config or chosen.config)).model_dump(exclude={"sweep"})
            for settings in (row.settings, column.settings, chosen.settings, starts[0], row.after, column.after):
                _apply(table, settings)
            base = configuration.read(table)
            # rows with equal settings share their runs
            name = f"{_slug(base.algorithm.name)}-{_digest(base, chosen.vary)}"
            last = [{**start, **row.after, **column.after} for start in starts]
            cells[row.name, column.name] = tuple(_runs(base, chosen.vary, last, out / RUNS / name))
    return Grid(tuple(rows), tuple(columns), cells, before)


def _first_runs(chosen: SizeSettings, seeds: int, out: Path) -> tuple[Point | None, list[dict[str, Any]]]:
    """Return the runs that the others start from, and for each seed the setting that names its start."""
    if not chosen.first:
        return None, [{}] * seeds
    table = configuration.read(config_path(chosen.first["config"])).model_dump(exclude={"sweep"})
    _apply(table, chosen.first.get("set", {}))
    base, vary = configuration.read(table), tuple(chosen.first.get("vary", ()))
    key, name = chosen.first.get("key", "model.weights"), f"first-{_digest(base, vary)}"
    if not vary:
        folder = out / RUNS / name
        return Point((("row", "first"),), ((base.seed, base, folder),)), [{key: str(folder)}] * seeds
    runs = tuple(_runs(base, vary, [{}] * seeds, out / RUNS / name))
    return Point((("row", "first"),), runs), [{key: str(folder)} for _, _, folder in runs]


def _runs(
    base: Config, vary: tuple[str, ...], settings: Sequence[Mapping[str, Any]], folder: Path
) -> Iterator[tuple[int, Config, Path]]:
    """Yield the run of every seed, each with settings of its own: seed, configuration, folder."""
    for number, last in enumerate(settings):
        seed, own = base.seed + number, base.model_dump()
        _apply(own, last)
        _apply(own, {"seed": seed, **_varied(own, vary, number)})
        yield seed, configuration.read(own), folder.with_name(f"{folder.name}_seed-{seed}")


def _varied(table: Mapping[str, Any], keys: tuple[str, ...], number: int) -> dict[str, Any]:
    """Return the further seeds of the run with this number."""
    return {key: reduce(lambda part, name: part[name], key.split("."), cast(Any, table)) + number for key in keys}


def _apply(table: dict[str, Any], settings: Mapping[str, Any]) -> None:
    apply_changes(table, [(key.split("."), value, f"the setting '{key}'") for key, value in settings.items()])


def _digest(config: Config, vary: tuple[str, ...] = ()) -> str:
    """Return a digest of the settings that a result depends on, but the seed, with the names of the seeds that vary.

    Defaults are left out, so a new setting with a default does not make finished runs unknown.
    """
    settings = config.model_dump(exclude={"seed", *IRRELEVANT}, exclude_defaults=True)
    settings |= {"vary": vary} if vary else {}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:10]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+=-]+", "-", text).strip("-")[:LONGEST_NAME]
