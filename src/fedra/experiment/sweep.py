"""`fedra.sweep`: train a grid of settings and seeds, resumable, with the table that papers print."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedra.config import reading as configuration
from fedra.config.overrides import apply_changes, parse_override, parse_value
from fedra.config.resolve import have_same_settings, record_weights_digest, resolve_defaults
from fedra.config.schema import Config
from fedra.console import choose_console, format_duration, tell
from fedra.errors import ConfigError, RunFailed
from fedra.experiment import run as experiment
from fedra.experiment.execution import Interrupted
from fedra.experiment.privacy_total import add_up
from fedra.reports.sweep_metric import SweepMetric
from fedra.reports.sweep_table import Cell, Point, caption, cell_record, csv_text, markdown, short, table_rows
from fedra.storage.run_folder import RunFolder
from fedra.trust import allow_imports
from fedra.writing import write_atomically

RECORD = "cells.json"
"""All points of the grid with their runs; the first file that a finished sweep writes."""
FILES = (RECORD, "table.md", "table.csv", "privacy.json", "sweep.svg", "sweep.csv", "curves.svg", "curves.csv")
MOST_CURVES = 10
"""Largest number of points in one plot, limited by the number of colors."""


class SweepResult(list[tuple[Point, Cell]]):
    """The result of a sweep: for each point of the grid its settings, its runs and their results."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per point: settings, accuracies (in percent, one per seed), mean, deviation, failed, runs."""
        return [cell_record(point, cell) | {"mean": cell.mean, "deviation": cell.deviation} for point, cell in self]

    def __repr__(self) -> str:
        return f"SweepResult({', '.join(f'{point.label}: {cell.text()}' for point, cell in self)})"


@allow_imports()
def sweep(
    config: str | Path | Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    seeds: int | None = None,
    out: Path | str = "runs/sweep",
    console: Console | None = None,
) -> SweepResult:
    """Train a grid of settings and seeds; finished runs are not repeated, and failed ones do not stop the others.

    Args:
        config: The configuration as a dict or the path of a TOML file; its section [sweep] may define the grid.
        grid: The settings to vary: a mapping from dotted keys to values, or strings `key=a,b` as on the command line.
        seeds: Number of seeds per point, counted up from the configuration's seed; that of [sweep], or 1, by default.
        out: Output folder for all runs, tables and plots.
        console: Where progress is shown; standard error if it is a terminal, by default.

    Returns:
        The points of the grid with the results of their runs, as a list with the attribute `rows`.

    Example:
        >>> fedra.sweep("c.toml", {"local.lr": [0.1, 0.01]}, seeds=3, out="runs/lr").rows
    """
    folder, shown = Path(out), choose_console(console) or Console(quiet=True)
    points, base, swept = plan_sweep(config, grid, seeds, folder)
    _refuse_foreign(folder)
    train_points(points, shown)
    metric = base.sweep.metric if base.sweep else "final_accuracy"
    cells = SweepResult((point, outcome(point, metric)) for point in points)
    _report(cells, swept, folder, shown, SweepMetric(metric))
    return cells


def _refuse_foreign(folder: Path) -> None:
    """Raise if the folder has files of the names that a sweep writes, and no sweep wrote them."""
    there = [name for name in FILES if (folder / name).exists()]
    if not there:
        return
    try:
        cells = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        ours = isinstance(cells, list) and all(isinstance(cell, dict) and "runs" in cell for cell in cells)
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise ConfigError(
            f"the output folder of a sweep must be new or that of a sweep, got '{folder}' with another '{there[0]}': "
            "choose another folder"
        )


def plan_sweep(
    config: str | Path | Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]] | Sequence[str],
    seeds: int | None,
    out: Path,
) -> tuple[list[Point], Config, dict[str, list[Any]]]:
    """Return the points of a sweep with their runs, the base configuration, and the swept keys; trains nothing."""
    base, swept = read_grid(config, [] if isinstance(grid, Mapping) else list(grid))
    swept |= {key: list(values) for key, values in grid.items()} if isinstance(grid, Mapping) else {}
    return expand(base, swept, seeds or (base.sweep.seeds if base.sweep else 1), out), base, swept


def read_grid(source: str | Path | Mapping[str, Any], words: Sequence[str]) -> tuple[Config, dict[str, list[Any]]]:
    """Return the base configuration and the swept keys; a word with several values sweeps, with one value overrides."""
    table = configuration.read(source)
    written = table.sweep.grid if table.sweep else {}
    grid: dict[str, list[Any]] = dict(_flatten_grid(written))
    overrides = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"settings of a sweep must have the form key=a,b,c, got '{word}'")
        values = [parse_value(item) for item in split_values(text)]
        grid.pop(key, None)
        if len(values) > 1:
            grid[key] = values
        else:
            overrides.append(word)
    merged = table.model_dump()
    apply_changes(merged, [parse_override(word) for word in overrides])
    if "seed" in grid:
        raise ConfigError("a sweep cannot vary 'seed': set the number of seeds with --seeds, or with seeds in [sweep]")
    return configuration.read(merged), grid


def _flatten_grid(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the swept keys with their values; TOML reads an unquoted dotted key as nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten_grid(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(value) if isinstance(value, list | tuple) else [value]


def split_values(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    items, depth, quote, current = [], 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and not depth and not quote:
            items.append(current.strip())
            current = ""
        else:
            current += character
    return [*items, current.strip()]


def expand(config: Config, grid: Mapping[str, Sequence[Any]], seeds: int, out: Path) -> list[Point]:
    """Return all points of the grid, each with its runs and their folders."""
    points = []
    for values in itertools.product(*grid.values()):
        settings = tuple(zip(grid, values, strict=True))
        runs = []
        for seed in range(seeds):
            table = config.model_dump(exclude={"sweep"})
            wanted = (*settings, ("seed", config.seed + seed))
            apply_changes(table, [(key.split("."), value, f"the swept key '{key}'") for key, value in wanted])
            name = "_".join(_slug(f"{key.rpartition('.')[2]}-{short(value)}") for key, value in settings) or "base"
            runs.append((config.seed + seed, configuration.read(table), out / f"{name}_seed-{config.seed + seed}"))
        points.append(Point(settings, tuple(runs)))
    return points


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+=-]+", "-", text).strip("-")


def train_points(points: Sequence[Point], console: Console) -> None:
    """Train the runs of all points that are not finished; all are checked before the first one starts.

    Args:
        points: Grid points with their runs; a run that belongs to several points is trained once.
        console: Where progress is shown.
    """
    _check_all(points)
    _run_all(points, console)


def _check_all(points: Sequence[Point]) -> None:
    """Check all points before the first run starts."""
    folders = Counter(folder for point in points for _, _, folder in point.runs)
    name, count = folders.most_common(1)[0] if folders else (Path(), 0)
    if count > 1:
        raise ConfigError(
            f"the points of the grid must have different folders, got {count} for '{name.name}': give each value once"
        )
    for point in points:
        for _, config, folder in point.runs:
            wanted = record_weights_digest(resolve_defaults(config))
            if (folder / "config.toml").exists() and not have_same_settings(RunFolder(folder).config(), wanted):
                raise ConfigError(
                    f"the run in '{folder}' must have the same configuration, got another one: choose another "
                    "folder (--out, out in Python)"
                )


def _run_all(points: Sequence[Point], console: Console) -> None:
    runs = [run for point in points for run in point.runs]
    waiting = [run for run in runs if not RunFolder(run[2]).finished]
    for _, _, folder in runs:
        RunFolder(folder).tidy()
    console.print(f"{len(runs)} runs, {len(runs) - len(waiting)} already finished", highlight=False)
    started = time.monotonic()
    for number, (_, config, folder) in enumerate(waiting):
        left = (time.monotonic() - started) / number * (len(waiting) - number) if number else None
        remaining = "" if left is None else f", about {format_duration(left)} left"
        console.print(f"[{number + 1}/{len(waiting)}] {folder.name}{remaining}", highlight=False, markup=False)
        try:
            if (folder / "config.toml").exists():
                experiment.resume(folder, console=console)
            else:
                experiment.run(config, out=folder, console=console)
        except Interrupted:
            raise Interrupted(
                f"interrupted in run {number + 1} of {len(waiting)} ({folder.name}); continue by calling the same "
                "command again"
            ) from None
        except RunFailed as error:
            console.print(f"failed: {error}", highlight=False, markup=False, soft_wrap=True)  # the sweep continues


def outcome(point: Point, metric: str = "final_accuracy") -> Cell:
    """Return the chosen metric of a point's runs."""
    chosen = SweepMetric(metric)
    accuracies, endings = [], []
    for _, _, folder in point.runs:
        summary, failure = RunFolder(folder).summary(), RunFolder(folder).failure()
        if failure is None and "collapsed" in summary and summary.get(metric) is None:
            failure = "collapsed"
        if failure:
            endings.append(failure)
        accuracies.append(chosen.chance(summary) if failure else chosen.value(summary, folder))
    return Cell(tuple(accuracies), tuple(endings))


def _report(
    cells: list[tuple[Point, Cell]], grid: Mapping[str, Sequence[Any]], out: Path, console: Console, metric: SweepMetric
) -> None:
    rows = table_rows(cells, grid, metric.heading)
    table = Table(header_style="bold")
    for number, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)
    tell(console, caption(cells))
    tell(console, metric.best(cells))
    write_atomically(out / RECORD, json.dumps([cell_record(p, c) for p, c in cells], indent=1).encode())  # first
    total = add_up([RunFolder(folder).summary().get("privacy") or {} for p, _ in cells for _, _, folder in p.runs])
    if total is not None:
        tell(console, total.sentence())
        write_atomically(out / "privacy.json", json.dumps(total.as_dict(), indent=1).encode())
    below = "" if total is None else f"\n{total.sentence()}\n"
    write_atomically(out / "table.md", (markdown(rows) + below).encode())
    write_atomically(out / "table.csv", csv_text(cells, grid).encode())
    validated = [point.label for point, _ in cells if point.is_validated]
    if grid and len(grid) <= 2:
        from fedra.reports.comparison import draw_sweep

        split = "" if 0 < len(validated) < len(cells) else "validation" if validated else "test"
        draw_sweep(cells, grid, out / "sweep.svg", metric.axis_label(split))
    if 1 < len(cells) <= MOST_CURVES:
        from fedra.reports.comparison import draw_mean_curves

        runs = {point.label: [RunFolder(folder).metrics() for _, _, folder in point.runs] for point, _ in cells}
        draw_mean_curves(runs, out / "curves.svg", validated)
    console.print(f"tables and plots in {out}", highlight=False)
