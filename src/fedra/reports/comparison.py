"""Plots and tables of one or several runs."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedra.config.mode import title
from fedra.console import format_duration
from fedra.errors import ConfigError
from fedra.evaluation.results import find_collapse
from fedra.pictures import (
    COLORS,
    SMALL,
    line_style,
    make_panels,
    name_ticks,
    place_legend,
    save_numbers,
    set_title,
    style_heat_map,
    use_counts,
)
from fedra.reports.run_search import expand_runs
from fedra.reports.sweep_table import Cell, Point, markdown, short
from fedra.storage.run_folder import RunFolder
from fedra.writing import as_unicode, save_figure, write_atomically

Metrics = Sequence[Mapping[str, Any]]


def draw_curves(runs: Mapping[str, Metrics], path: Path, validated: Collection[str] = ()) -> None:
    """Plot accuracy and training loss over the rounds; `validated` names the runs evaluated on a validation split."""
    draw_mean_curves({name: [metrics] for name, metrics in runs.items()}, path, validated)


def draw_mean_curves(groups: Mapping[str, Sequence[Metrics]], path: Path, validated: Collection[str] = ()) -> None:
    """Plot the mean accuracy and training loss of each group of runs, with a band of one standard deviation."""
    splits = {name: "validation" if name in validated else "test" for name in groups}
    is_mixed = len(set(splits.values())) > 1
    figure, (left, right) = make_panels(1, 2, width=4.75, height=3.8)
    for number, (name, runs) in enumerate(groups.items()):
        label = f"{name} ({splits[name]})" if is_mixed else name
        _plot_mean(left, runs, "accuracy", 100, number, label=label)
        _plot_mean(right, runs, "train_loss", 1, number)
    split = "" if is_mixed else f"{next(iter(splits.values()), 'test')} "
    left.set(ylabel=f"{split}accuracy (%)")
    right.set(ylabel="training loss")
    for axes in (left, right):
        use_counts(axes)
    if len(groups) > 1:
        place_legend(left)
    elif groups:
        set_title(left, next(iter(groups)))
    save_figure(figure, path)


def _plot_mean(axes: Axes, runs: Sequence[Metrics], key: str, factor: float, number: int, label: str = "") -> None:
    """Plot the mean over the rounds that all runs have, because the mean would jump where one run failed."""
    values = [{line["round"]: factor * line[key] for line in run if line.get(key) is not None} for run in runs]
    shared = [round for round in values[0] if all(round in run for run in values)]
    rows = np.array([[run[round] for round in shared] for run in values])
    mean, spread = rows.mean(axis=0), rows.std(axis=0, ddof=min(1, len(rows) - 1))
    style = line_style(number, len(shared))
    axes.plot(shared, mean, label=label or None, **style)
    if len(runs) > 1:
        axes.fill_between(shared, mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0)


def draw_sweep(
    cells: Sequence[tuple[Point, Cell]],
    grid: Mapping[str, Sequence[Any]],
    path: Path,
    label: str = "test accuracy (%)",
) -> None:
    """Plot one swept key as points with the standard deviation over seeds, or two keys as a heat map.

    Points need no zero, as bars would, so the axis shows the differences.
    """
    keys = list(grid)
    size = max(5.0, 1.1 * len(grid[keys[-1]]) + 3), 0.55 * len(grid[keys[0]]) + 2.0
    figure, (axes,) = make_panels(width=size[0], height=size[1])
    names = [short(value) for value in grid[keys[0]]]
    if len(keys) == 1:
        means, spread = [cell.mean for _, cell in cells], [cell.deviation for _, cell in cells]
        axes.errorbar(means, names, xerr=spread, fmt="o", color=COLORS[0], capsize=3)
        for name, mean, (_, cell) in zip(names, means, cells, strict=True):
            axes.annotate(
                cell.text(), (mean, name), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=SMALL
            )
        axes.set(xlabel=label, ylim=(len(names) - 0.5, -0.7))
        axes.margins(x=0.15)
    else:
        columns = [short(value) for value in grid[keys[1]]]
        values = [[cells[i * len(columns) + j][1].mean for j in range(len(columns))] for i in range(len(names))]
        style_heat_map(axes)
        axes.imshow(values, cmap="Blues", aspect="auto")
        middle = (max(map(max, values)) + min(map(min, values))) / 2
        for i, j in itertools.product(range(len(names)), range(len(columns))):
            text = cells[i * len(columns) + j][1].text()
            axes.text(
                j,
                i,
                text,
                ha="center",
                va="center",
                fontsize=SMALL,
                color="white" if values[i][j] > middle else "black",
            )
        name_ticks(axes, columns)
        name_ticks(axes, names, axis="y")
        axes.set(xlabel=keys[1])
    axes.set(ylabel=keys[0])
    save_figure(figure, path)


def titles(folders: Sequence[RunFolder]) -> list[str]:
    """Return a name for each run: its algorithm, marked if centralized, and its folder if names are equal."""
    names = [title(folder.config()) for folder in folders]
    return [
        name if names.count(name) == 1 else as_unicode(f"{name} ({folder.path})")
        for name, folder in zip(names, folders, strict=True)
    ]


@dataclass(frozen=True)
class Comparison:
    """A comparison of several runs.

    Args:
        rows: One dict per run: run, final and best (accuracies in percent, or how the run failed), rounds, bytes_up,
            bytes_down and seconds; with personal models also own, over_clients and worst_decile; and for every
            accuracy in `reach` the first round that reached it.
        table: The rows as a table for a `rich` console.
        notes: Why runs may not be comparable: different data or protocols, or unfinished runs.

    Example:
        >>> fedra.compare(["runs/fedavg", "runs/fedprox"], out="both.svg").rows
    """

    rows: list[dict[str, Any]]
    table: Table
    notes: tuple[str, ...] = ()

    def save(self, path: Path | str) -> None:
        """Write the table.

        Args:
            path: A file for other programs (.csv and .json have the rows as they are) or for papers (.md, .tex).
        """
        file, texts = Path(path), _texts(self.rows)
        if file.suffix == ".csv":
            save_numbers(file, [{name: row.get(name) for name in _columns(self.rows)} for row in self.rows])
            return
        if file.suffix == ".json":
            text = json.dumps(self.rows, indent=1) + "\n"
        elif file.suffix == ".md":
            text = markdown(texts)
        elif file.suffix == ".tex":
            text = _latex(texts)
        else:
            raise ConfigError(f"the name of a table must end in .csv, .json, .md or .tex, got '{path}'")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text.encode(errors="backslashreplace"), durable=False)

    def __str__(self) -> str:
        console = Console(width=200, file=io.StringIO())
        console.print(self.table)
        for note in self.notes:
            console.print(note, highlight=False, markup=False, soft_wrap=True)
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def compare(runs: Sequence[Path | str], *, reach: Sequence[float] = (), out: Path | str | None = None) -> Comparison:
    """Compare runs by their records, without training or importing anything.

    Args:
        runs: Folders of runs, or of many runs, such as that of a sweep.
        reach: Accuracies between 0 and 1. The first round that reaches each one is reported.
        out: File for a plot of the training curves (.svg, .png or .pdf), with their numbers in a .csv file next to
            it. Defaults to no plot.

    Returns:
        One row per run, and a table.

    Example:
        >>> print(fedra.compare(["runs/fedavg", "runs/fedprox"], reach=[0.9]))
    """
    folders = [RunFolder(path) for path in expand_runs(runs)]
    if not folders:
        raise ConfigError("compare must have at least one run, got none: pass the folders of runs")
    rows = [_row(name, folder, reach) for name, folder in zip(titles(folders), folders, strict=True)]
    if out is not None:
        names = [row["run"] for row in rows]
        named = dict(zip(names, folders, strict=True))
        validated = [name for name, folder in named.items() if folder.config().evaluation.validation]
        metrics = {name: folder.metrics() for name, folder in named.items()}
        draw_curves(metrics, Path(out), validated)
        keys = ("round", "accuracy", "train_loss")
        save_numbers(
            out, ({"run": name} | {key: line.get(key) for key in keys} for name in metrics for line in metrics[name])
        )
    return Comparison(rows, _table(rows), tuple(_notes([row["run"] for row in rows], folders)))


def _notes(names: Sequence[str], folders: Sequence[RunFolder]) -> Iterator[str]:
    """Yield why runs may not be comparable."""
    configs = [folder.config() for folder in folders]
    for key, values in (
        ("data sets", [config.data.name for config in configs]),
        ("evaluation protocols", [config.evaluation.protocol for config in configs]),
        ("tests", [_who_tested(folder.metrics()) for folder in folders]),
    ):
        if len(set(values)) > 1:
            yield f"note: the runs have different {key}: {', '.join(sorted(set(values)))}"
    for name, folder, config in zip(names, folders, configs, strict=True):
        if not folder.finished:
            yield f"note: {name} is not finished: {len(folder.metrics())} of {config.rounds} rounds"


def _who_tested(metrics: Metrics) -> str:
    """Return whose images the accuracy of a run is about: a test set, or what the sites of a federation held out."""
    names = set(metrics[-1]) if metrics else set()
    at_sites = "sites_mean_accuracy" in names and "sites_accuracy" not in names
    return "images held out by sites" if at_sites else "a test set"


def _row(name: str, folder: RunFolder, reach: Sequence[float]) -> dict[str, Any]:
    metrics, failure = folder.metrics(), folder.failure()
    accuracies, final = _accuracies(metrics), _final(metrics)
    if failure is None and final is None and find_collapse(metrics):
        failure = "collapsed"
    row: dict[str, Any] = {"run": name, "final": failure or (None if final is None else 100 * final)}
    row["best"] = 100 * max(accuracies) if accuracies else None
    row |= _personal(folder)
    row |= {f"to {100 * share:g} %": rounds_to(metrics, share) for share in reach}
    row["rounds"] = len(metrics)
    if spent := [line["epsilon"] for line in metrics if line.get("epsilon") is not None]:
        row |= {"epsilon": spent[-1], "delta": folder.config().privacy.delta}
    return row | {name: sum(line.get(name, 0) for line in metrics) for name in ("bytes_up", "bytes_down", "seconds")}


HEADINGS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "final": ("final %", lambda value: value if isinstance(value, str) else f"{value:.2f}"),
    "best": ("best %", lambda value: f"{value:.2f}"),
    "own": ("own %", lambda value: f"{value:.2f}"),
    "over_clients": ("over clients", lambda value: f"± {value:.2f}"),
    "worst_decile": ("worst decile", lambda value: f"{value:.2f}"),
    "epsilon": ("epsilon", lambda value: f"{value:.2f}"),
    "delta": ("delta", lambda value: f"{value:.0e}"),
    "bytes_up": ("up", lambda value: megabytes(value)),
    "bytes_down": ("down", lambda value: megabytes(value)),
    "seconds": ("time", format_duration),
}
"""How a column is called, and how its values are written; others are written as they are."""


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Build the table, with the best final accuracy in bold."""
    table = Table(title=None, header_style="bold")
    headings, *lines = _texts(rows)
    for name, heading in zip(_columns(rows), headings, strict=True):
        table.add_column(heading, justify="left" if name == "run" else "right")
    best = max((row["final"] for row in rows if isinstance(row["final"], float)), default=None)
    final = _columns(rows).index("final")
    for row, line in zip(rows, lines, strict=True):
        texts = [escape(text) for text in line]
        if best is not None and row["final"] == best:
            texts[final] = f"[bold]{texts[final]}[/bold]"
        table.add_row(*texts)
    return table


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the columns; some runs may have no personal models."""
    return max((list(row) for row in rows), key=len)


def _texts(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the headings and every row as texts."""
    columns = _columns(rows)
    lines = [[HEADINGS.get(name, (name,))[0] for name in columns]]
    for row in rows:
        formats = ((row.get(name), HEADINGS.get(name, (name, str))[1]) for name in columns)
        lines.append(["-" if value is None else written(value) for value, written in formats])
    return lines


def _latex(lines: Sequence[Sequence[str]]) -> str:
    """Format the table as a LaTeX tabular."""
    marks = str.maketrans({mark: f"\\{mark}" for mark in "&%$#_{}"} | {"\\": r"\textbackslash{}", "±": r"$\pm$"})
    written = [" & ".join(text.translate(marks) for text in line) + r" \\" for line in lines]
    body = "\n".join([r"\hline", written[0], r"\hline", *written[1:], r"\hline"])
    return f"\\begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}\n{body}\n\\end{{tabular}}\n"


def _personal(folder: RunFolder) -> dict[str, float]:
    """Return the accuracies of a finished run's personal models in percent, or nothing if all diverged."""
    summary = folder.summary() if folder.finished else {}
    names = {"own": "", "over_clients": "_std", "worst_decile": "_worst_decile"}
    if summary.get("personalized_accuracy") is None:
        return {}
    return {name: 100 * summary[f"personalized_accuracy{end}"] for name, end in names.items()}


def rounds_to(metrics: Metrics, share: float) -> int | None:
    """Return the first round with an accuracy of at least `share`, or None."""
    return next((line["round"] for line in metrics if line["accuracy"] is not None and line["accuracy"] >= share), None)


def read_shares(text: str) -> list[float]:
    """Parse accuracies between 0 and 1, such as 0.85,0.9; percentages raise, because 1 would be ambiguous."""
    found = []
    for word in text.split(","):
        try:
            share = float(word)
        except ValueError:
            raise ConfigError(
                f"accuracies must be numbers between 0 and 1, such as 0.85,0.9, got '{word.strip()}'"
            ) from None
        if not 0 < share <= 1:
            hint = f": write {share / 100:g} for {share:g} %" if 1 < share <= 100 else ""
            raise ConfigError(f"accuracies must be above 0 and at most 1, got {word.strip()}{hint}")
        found.append(share)
    return found


def _final(metrics: Metrics) -> float | None:
    """Return the accuracy of the last evaluation, or None if there was none or embeddings had collapsed."""
    accuracies = _accuracies(metrics)
    return accuracies[-1] if accuracies and not find_collapse(metrics) else None


def _accuracies(metrics: Metrics) -> list[float]:
    return [line["accuracy"] for line in metrics if line["accuracy"] is not None]


def megabytes(count: int) -> str:
    """Format bytes as megabytes (10^6)."""
    return f"{count / 1e6:,.1f} MB"
