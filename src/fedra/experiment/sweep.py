"""A grid of settings and seeds: every point a run of its own, resumable, tabulated as papers print it."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedra.errors import ConfigError, RunFailed, nearest
from fedra.experiment import config as configuration
from fedra.experiment import run as experiment
from fedra.experiment.build import marked, resolved
from fedra.experiment.centralised import NAME, is_centralised
from fedra.experiment.config import Config
from fedra.experiment.folder import RunFolder
from fedra.experiment.overrides import assign, override, parse_value
from fedra.experiment.progress import duration
from fedra.writing import write_atomically


@dataclass(frozen=True)
class Point:
    """One place in the grid: its settings, and a run per seed."""

    settings: tuple[tuple[str, Any], ...]
    runs: tuple[tuple[int, Config, Path], ...]

    @property
    def label(self) -> str:
        return ", ".join(f"{short(value)}" for _, value in self.settings) or "all"


@dataclass(frozen=True)
class Cell:
    """The outcome of a point: accuracies over its seeds, in percent; a failed run counts at chance level."""

    accuracies: tuple[float, ...]
    failed: int

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds (of the population, as the papers' code has it)."""
        return statistics.pstdev(self.accuracies)

    def text(self) -> str:
        """As papers print it: 64.13(0.46); one seed has no deviation; failures are said."""
        shown = f"{self.mean:.2f}" + (f"({self.deviation:.2f})" if len(self.accuracies) > 1 else "")
        return f"{shown}, {self.failed} failed" if self.failed else shown


def sweep(
    source: str, words: Sequence[str], seeds: int | None, out: Path, console: Console
) -> list[tuple[Point, Cell]]:
    """Run the grid of the configuration's [sweep] table and of `key=a,b` words; finished runs are not run again."""
    config, grid = read_grid(source, words)
    wanted = seeds or (config.sweep.seeds if config.sweep else 1)
    points = expand(config, grid, wanted, out)
    _check_all(points)
    _run_all(points, console)
    metric = config.sweep.metric if config.sweep else "final_accuracy"
    cells = [(point, outcome(point, metric)) for point in points]
    _report(cells, grid, out, console)
    return cells


def read_grid(source: str, words: Sequence[str]) -> tuple[Config, dict[str, list[Any]]]:
    """The base configuration and the swept keys; a word with several values sweeps, one with one value sets."""
    table = configuration.read(source)
    written = table.sweep.grid if table.sweep else {}
    grid: dict[str, list[Any]] = dict(_flat(written))
    overrides = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"'{word}' is not of the form key=a,b,c")
        values = [parse_value(item) for item in split_values(text)]
        grid.pop(key, None)
        if len(values) > 1:
            grid[key] = values
        else:
            overrides.append(word)
    merged = table.model_dump()
    for word in overrides:
        override(merged, word)
    if "seed" in grid:
        raise ConfigError("a sweep cannot vary 'seed': say how many seeds with --seeds, or with seeds in [sweep]")
    return configuration.read(merged), grid


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """The swept keys with their values; a dotted key is a table of tables unless it was quoted."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(value) if isinstance(value, list | tuple) else [value]


def split_values(text: str) -> list[str]:
    """Split at commas that stand outside brackets and quotes."""
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
    """All points of the grid, each with its runs and their folders."""
    points = []
    for values in itertools.product(*grid.values()):
        settings = tuple(zip(grid, values, strict=True))
        runs = []
        for seed in range(seeds):
            table = config.model_dump(exclude={"sweep"})
            for key, value in (*settings, ("seed", config.seed + seed)):
                assign(table, key.split("."), value, f"the swept key '{key}'")
            name = "_".join(_slug(f"{key.rpartition('.')[2]}-{short(value)}") for key, value in settings) or "base"
            runs.append((config.seed + seed, configuration.read(table), out / f"{name}_seed-{config.seed + seed}"))
        points.append(Point(settings, tuple(runs)))
    return points


def short(value: Any) -> str:
    """A value as a row's label: a table by its name and what else it sets, `plus` as a sum."""
    if isinstance(value, Mapping):
        rest = {key: item for key, item in value.items() if key not in ("name", "plus")}
        inside = ", ".join(f"{key}={short(item)}" for key, item in rest.items())
        name = str(value.get("name", ""))
        label = f"{name}({inside})" if inside and name else name or inside
        return " + ".join([label, *(short(item) for item in value.get("plus", ()))])
    if isinstance(value, list | tuple):
        return ",".join(short(item) for item in value)
    return str(value)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+=-]+", "-", text).strip("-")


def _check_all(points: Sequence[Point]) -> None:
    """Find mistakes in any point before hours are spent on the first."""
    folders = Counter(folder for point in points for _, _, folder in point.runs)
    name, count = folders.most_common(1)[0] if folders else (Path(), 0)
    if count > 1:
        raise ConfigError(f"{count} points of the grid would share the folder '{name.name}': give each value once")
    for point in points:
        for _, config, folder in point.runs:
            wanted = marked(resolved(config))
            if (folder / "config.toml").exists() and _matters(RunFolder(folder).config()) != _matters(wanted):
                raise ConfigError(
                    f"the run in '{folder}' was made with another configuration: choose another folder with --out"
                )


def _matters(config: Config) -> str:
    """What a run's result depends on, to compare: not where it ran, nor how often it was saved."""
    kept = config.model_dump(exclude={"runner", "device", "checkpoint", "log", "sweep"})
    kept |= {"runner": {"name": NAME}} if is_centralised(config) else {}  # another training, not another place
    return configuration.write(configuration.read(kept))


def _run_all(points: Sequence[Point], console: Console) -> None:
    runs = [run for point in points for run in point.runs]
    waiting = [run for run in runs if not RunFolder(run[2]).finished]
    console.print(f"{len(runs)} runs, {len(runs) - len(waiting)} of them finished before", highlight=False)
    started = time.monotonic()
    for number, (_, config, folder) in enumerate(waiting):
        left = (time.monotonic() - started) / number * (len(waiting) - number) if number else None
        told = "" if left is None else f", about {duration(left)} left"
        console.print(f"[{number + 1}/{len(waiting)}] {folder.name}{told}", highlight=False, markup=False)
        try:
            if (folder / "config.toml").exists():
                experiment.resume(folder, console=console)
            else:
                experiment.run(config, out=folder, console=console)
        except RunFailed as error:
            console.print(f"failed: {error}", highlight=False, markup=False, soft_wrap=True)  # the sweep goes on


def outcome(point: Point, metric: str = "final_accuracy") -> Cell:
    """The final accuracies of a point's runs."""
    accuracies, failed = [], 0
    for _, _, folder in point.runs:
        summary = RunFolder(folder).summary()
        if summary["status"] == "failed":
            failed += 1
            accuracies.append(100 * summary["chance_accuracy"])
        else:
            if not isinstance(summary.get(metric), int | float):
                shares = [name for name, value in summary.items() if isinstance(value, float)]
                raise ConfigError(f"the summary in '{folder}' has no number '{metric}': {nearest(metric, shares)}")
            accuracies.append(100 * summary[metric])
    return Cell(tuple(accuracies), failed)


def _report(cells: list[tuple[Point, Cell]], grid: Mapping[str, Sequence[Any]], out: Path, console: Console) -> None:
    rows = table_rows(cells, grid)
    table = Table(header_style="bold")
    for number, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)
    write_atomically(out / "table.md", markdown(rows).encode())
    write_atomically(out / "table.csv", _csv(cells, grid).encode())
    write_atomically(out / "cells.json", json.dumps([_record(p, c) for p, c in cells], indent=1).encode())
    if grid and len(grid) <= 2:
        from fedra.experiment.report import draw_sweep

        draw_sweep(cells, grid, out / "sweep.svg")
    console.print(f"tables and pictures in {out}", highlight=False)


def table_rows(cells: list[tuple[Point, Cell]], grid: Mapping[str, Sequence[Any]]) -> list[list[str]]:
    """Rows by all swept keys but the last, columns by the last (when there are two or more)."""
    if len(grid) < 2:
        heading = next(iter(grid), "run")
        return [[heading, "accuracy %"], *([point.label, cell.text()] for point, cell in cells)]
    *row_keys, column_key = grid
    columns = [short(value) for value in grid[column_key]]
    rows: dict[str, list[str]] = {}
    for point, cell in cells:
        label = ", ".join(short(value) for _, value in point.settings[:-1])
        rows.setdefault(label, []).append(cell.text())
    return [[f"{', '.join(row_keys)} \\ {column_key}", *columns], *([label, *texts] for label, texts in rows.items())]


def markdown(rows: list[list[str]]) -> str:
    """The table as Markdown."""
    rule = ["---"] + ["---:"] * (len(rows[0]) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])) + "\n"


def _csv(cells: list[tuple[Point, Cell]], grid: Mapping[str, Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*grid, "mean", "deviation", "seeds", "failed"])
    for point, cell in cells:
        values = [short(value) for _, value in point.settings]
        writer.writerow([*values, f"{cell.mean:.4f}", f"{cell.deviation:.4f}", len(cell.accuracies), cell.failed])
    return text.getvalue()


def _record(point: Point, cell: Cell) -> dict[str, Any]:
    folders = [folder.name for _, _, folder in point.runs]
    return {"settings": dict(point.settings), "accuracies": cell.accuracies, "failed": cell.failed, "runs": folders}
