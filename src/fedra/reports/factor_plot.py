"""A metric against a setting, one line per method, with error bars over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedra.errors import ConfigError
from fedra.pictures import line_style, make_panels, place_legend_below, save_picture
from fedra.reports.run_groups import group_runs
from fedra.reports.sweep_metric import SweepMetric

FactorPoints = Sequence[tuple[float, Sequence[float]]]
"""For each value of a setting the metric of every seed."""
LOG_RATIO = 8.0
"""Positions that span more than this ratio are drawn on a logarithmic axis."""


MOST_TICKS = 8
"""Largest number of positions that are all labeled."""


def draw_factors(panels: Mapping[str, Mapping[str, FactorPoints]], path: Path, ylabel: str) -> None:
    """Plot a metric against one or several settings, each in a panel.

    Args:
        panels: For each setting the points of each method.
        path: The file to write; its ending selects the format.
        ylabel: Label of the metric.
    """
    figure, found = make_panels(1, len(panels), width=max(5.0 / len(panels), 3.4), height=3.6)
    rows: list[dict[str, Any]] = []
    for axes, (setting, lines) in zip(found, panels.items(), strict=True):
        rows += [{"setting": setting} | row for row in plot_factor(axes, lines)]
        axes.set(xlabel=setting, ylabel=ylabel)
    handles = max((axes.get_legend_handles_labels()[0] for axes in found), key=len)
    place_legend_below(figure, handles)
    save_picture(figure, path, rows)


def plot_factor(axes: Axes, lines: Mapping[str, FactorPoints]) -> list[dict[str, Any]]:
    """Plot one line per name: means over seeds at numeric positions, with bars of one sample standard deviation.

    Args:
        axes: The panel.
        lines: Positions and values over seeds, by name.

    Returns:
        The numbers for a .csv file.
    """
    rows: list[dict[str, Any]] = []
    for number, (name, points) in enumerate(lines.items()):
        ordered = sorted(points, key=lambda point: point[0])
        at = [position for position, _ in ordered]
        means = [float(np.mean(values)) for _, values in ordered]
        bars = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for _, values in ordered]
        axes.errorbar(at, means, yerr=bars, capsize=3, label=name, **_style(number, len(at)))
        for (position, values), mean, bar in zip(ordered, means, bars, strict=True):
            rows.append({"line": name, "position": position, "mean": mean, "deviation": bar, "seeds": len(values)})
    positions = sorted({position for points in lines.values() for position, _ in points})
    if positions and positions[0] > 0 and positions[-1] / positions[0] > LOG_RATIO:
        axes.set_xscale("log")
    if len(positions) <= MOST_TICKS:
        axes.set_xticks(positions, [f"{place:g}" for place in positions])
        axes.minorticks_off()
    return rows


def _style(number: int, points: int) -> dict[str, Any]:
    style = line_style(number, points) | {"markevery": 1}
    del style["markeredgewidth"]  # it would hide the caps of the bars
    return style


def read_factor(key: str, runs: Sequence[Path | str], metric: str = "final_accuracy") -> dict[str, FactorPoints]:
    """Read a metric of finished runs against a key of their configurations.

    Args:
        key: Dotted key with a numeric value, such as cohort.fraction.
        runs: Folders of runs.
        metric: Key of summary.json.

    Returns:
        For each method the values over seeds at each position, in increasing order.
    """
    chosen = SweepMetric(metric)
    found: dict[str, dict[float, list[float]]] = {}
    for members in group_runs(runs).values():
        config = members[0].config()
        position = _position(config.model_dump(), key, members[0].path)
        points = found.setdefault(config.algorithm.name, {}).setdefault(position, [])
        points += [chosen.value(run.summary(), run.path) for run in members]
    return {name: sorted(points.items()) for name, points in found.items()}


def _position(table: object, key: str, path: Path) -> float:
    value = table
    for step in key.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"'{key}' must be a number in the configuration of every run, got {value!r} in '{path}'")
    return float(value)
