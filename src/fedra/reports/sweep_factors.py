"""A sweep's metric against one or two of its factors, with error bars over seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedra.errors import ConfigError, RunError, nearest
from fedra.file_reading import read_text_file
from fedra.pictures import make_panels, name_ticks, place_legend, save_picture
from fedra.reports.factor_plot import plot_factor
from fedra.reports.sweep_metric import SweepMetric
from fedra.reports.sweep_table import short
from fedra.storage.run_folder import RunFolder

LOG_RATIO = 20.0
"""Positive positions that span more than this ratio are drawn on a logarithmic axis."""

MOST_TICKS = 8
"""Largest number of positions that are all labeled."""


@dataclass(frozen=True)
class SweepPoint:
    """One grid point of a sweep: its settings, and the metric of each seed."""

    settings: dict[str, Any]
    values: tuple[float, ...]


def read_sweep(folder: Path | str, metric: str = "final_accuracy") -> list[SweepPoint]:
    """Read a metric of every run of a sweep.

    Args:
        folder: Folder of a sweep, with cells.json.
        metric: A number of summary.json; otherwise a key of metrics.jsonl, of which the last value is used, or of
            clients.jsonl, of which the mean over the clients of the last round is used.

    Returns:
        One entry per grid point; runs that failed are left out.

    Example:
        ```python
        points = read_sweep("sweeps/rho", "proximal_loss")
        ```
    """
    folder = Path(folder)
    try:
        cells = json.loads(read_text_file(folder / "cells.json"))
        grid = [(cell["settings"], [folder / str(name) for name in cell["runs"]]) for cell in cells]
    except FileNotFoundError:
        raise ConfigError(
            f"the folder must contain a finished sweep, got '{folder}' without cells.json: give the folder of "
            "`fedra sweep --out`"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"'{folder / 'cells.json'}' is damaged ({error}): call `fedra sweep` again") from None
    found = []
    for settings, runs in grid:
        ended = [RunFolder(run) for run in runs if RunFolder(run).failure() is None]
        found.append(SweepPoint(dict(settings), tuple(_read_metric(run, metric) for run in ended)))
    return found


def _read_metric(run: RunFolder, metric: str) -> float:
    summary = run.summary()
    if isinstance(summary.get(metric), int | float):
        return SweepMetric(metric).value(summary, run.path)
    rounds = [line[metric] for line in run.metrics() if isinstance(line.get(metric), int | float)]
    if rounds:
        return float(rounds[-1])
    clients = [line for line in run.clients() if isinstance(line.get(metric), int | float)]
    if clients:
        last = max(line["round"] for line in clients)
        return float(np.mean([line[metric] for line in clients if line["round"] == last]))
    known = {*summary, *(key for line in (*run.metrics()[-1:], *run.clients()[-1:]) for key in line)}
    raise ConfigError(
        f"the metric must be a number that the runs recorded, got '{metric}', which is not in '{run.path}': "
        f"{nearest(metric, sorted(known))}"
    )


def draw_sweep_factors(
    points: Sequence[SweepPoint], path: Path, metric: str = "final_accuracy", *, factor: str | None = None
) -> None:
    """Plot a metric against a factor of a sweep, one line per value of the other factor.

    Points are means over seeds, bars one sample standard deviation.

    Args:
        points: The grid points.
        path: The file to write; its ending selects the format.
        metric: The metric, for the axis.
        factor: The swept key of the x axis. Defaults to the last one with numbers.
    """
    keys = list(points[0].settings) if points else []
    if not 1 <= len(keys) <= 2:
        raise ConfigError(f"the sweep must have one or two factors to plot, got {len(keys)}: {', '.join(keys)}")
    if factor is not None and factor not in keys:
        raise ConfigError(f"the x axis must be a factor of the sweep, got '{factor}': {nearest(factor, keys)}")
    across = factor or _choose_factor(points, keys)
    others = [key for key in keys if key != across]
    lines: dict[str, list[SweepPoint]] = {}
    for point in points:
        if point.values:
            lines.setdefault(", ".join(short(point.settings[key]) for key in others), []).append(point)
    if not lines:
        raise ConfigError("at least one run of the sweep must have finished to plot it, got none")
    numeric = all(_is_number(point.settings[across]) for point in points)
    names = list(dict.fromkeys(short(point.settings[across]) for point in points))

    def position(point: SweepPoint) -> float:
        value = point.settings[across]
        return float(value) if numeric else float(names.index(short(value)))

    figure, (axes,) = make_panels(width=6.0, height=4.0)
    rows = plot_factor(axes, {name: [(position(one), one.values) for one in group] for name, group in lines.items()})
    if not numeric:
        name_ticks(axes, names)
    known = metric.startswith(("final_", "best_", "test_"))
    axes.set(xlabel=across, ylabel=SweepMetric(metric).axis_label("test") if known else metric.replace("_", " "))
    if others:
        place_legend(axes, title=others[0])
    save_picture(figure, path, [{"factor": across} | row for row in rows])


def _choose_factor(points: Sequence[SweepPoint], keys: Sequence[str]) -> str:
    numeric = [key for key in keys if all(_is_number(point.settings[key]) for point in points)]
    return numeric[-1] if numeric else keys[-1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
