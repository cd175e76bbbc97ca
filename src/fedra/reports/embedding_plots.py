"""Plots of the embeddings of several runs side by side: t-SNE maps and histograms of angles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from fedra.analysis.angles import (
    BINS,
    OTHER_CLASS_CROSS_CLIENT,
    OTHER_CLASS_SAME_CLIENT,
    SAME_CLASS_CROSS_CLIENT,
    SAME_CLASS_SAME_CLIENT,
    Angles,
)
from fedra.analysis.embeddings import Embeddings
from fedra.writing import save_figure

COLUMNS = 4
NAMED_CLASSES = 20
"""Maximum number of classes with their own color and a legend; more classes use a color wheel."""

Curves = tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...]
CURVES: Curves = (
    ("within classes", (SAME_CLASS_CROSS_CLIENT, SAME_CLASS_SAME_CLIENT), {"color": "#3366aa"}),
    ("between classes", (OTHER_CLASS_CROSS_CLIENT, OTHER_CLASS_SAME_CLIENT), {"color": "#cc6633"}),
)
CLIENT_CURVES: Curves = (
    ("within classes, one client", (SAME_CLASS_SAME_CLIENT,), {"color": "#3366aa"}),
    ("within classes, across clients", (SAME_CLASS_CROSS_CLIENT,), {"color": "#66aadd", "linestyle": (0, (4, 2))}),
    ("between classes, one client", (OTHER_CLASS_SAME_CLIENT,), {"color": "#cc6633"}),
    ("between classes, across clients", (OTHER_CLASS_CROSS_CLIENT,), {"color": "#881133", "linestyle": (0, (4, 2))}),
)


def draw_maps(maps: Mapping[str, tuple[Embeddings, NDArray[np.float64]]], path: Path) -> None:
    """Plot the points of every run in its own panel, colored by class, like figure 2 of the FedArc paper."""
    figure, panels = _panels(len(maps), 3.6, 3.6)
    names: tuple[str, ...] = ()
    for axes, (title, (embeddings, points)) in zip(panels, maps.items(), strict=True):
        labels = embeddings.labels.cpu().numpy()
        names = max(names, embeddings.classes or tuple(map(str, range(int(labels.max()) + 1))), key=len)
        colors = np.array(_colors(max(len(embeddings.classes), int(labels.max()) + 1)))
        # Rasterized, because thousands of vector points make a file of megabytes.
        axes.scatter(points[:, 0], points[:, 1], c=colors[labels], s=5, linewidths=0, rasterized=True)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("#d8dde2")
    if len(names) <= NAMED_CLASSES:
        dots = [panels[0].scatter([], [], s=18, color=color, label=name) for name, color in _legend_entries(names)]
        figure.legend(handles=dots, loc="outside lower center", ncols=10, frameon=False, fontsize=8)
    save_figure(figure, path)


def draw_angles(measured: Mapping[str, Angles], path: Path) -> None:
    """Plot histograms of the angles within and between classes, also by client if clients are known."""
    figure, panels = _panels(len(measured), 4.4, 3.4, same_scale=True)
    for axes, (title, angles) in zip(panels, measured.items(), strict=True):
        for label, kinds, style in CURVES if angles.clients is None else CLIENT_CURVES:
            if int(angles.histogram(*kinds).sum()):
                _draw_histogram(axes, angles.histogram(*kinds), label, style)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set(xlabel="angle (degrees)", xlim=(0, BINS), xticks=range(0, BINS + 1, 30))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel("pairs per degree (%)")
    save_figure(figure, path)


def _draw_histogram(axes: Axes, counts: Tensor, label: str, style: dict[str, Any]) -> None:
    shares = 100 * counts.double().numpy() / int(counts.sum())
    axes.stairs(shares, np.arange(BINS + 1), linewidth=1.6, label=label, **style)
    axes.stairs(shares, np.arange(BINS + 1), fill=True, alpha=0.08, color=style["color"])


def _panels(count: int, width: float, height: float, same_scale: bool = False) -> tuple[Figure, list[Axes]]:
    """Create a figure with `count` panels, four per row."""
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.4), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=same_scale).flat)
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def _colors(classes: int) -> list[Any]:
    if classes <= 10:
        return [colormaps["tab10"](number) for number in range(classes)]
    if classes <= NAMED_CLASSES:
        return [colormaps["tab20"](number) for number in range(classes)]
    return [colormaps["hsv"](number / classes) for number in range(classes)]


def _legend_entries(names: tuple[str, ...]) -> list[tuple[str, Any]]:
    return list(zip(names, _colors(len(names)), strict=True))


def angles_table(measured: Mapping[str, Angles]) -> Table:
    """Build a table of the metrics, with one column per run."""
    table = Table(header_style="bold")
    table.add_column("metric")
    for name in measured:
        table.add_column(escape(name), justify="right")
    columns = [angles.metrics() for angles in measured.values()]
    for key in dict.fromkeys(key for found in columns for key in found):
        table.add_row(key.replace("_", " "), *(_format(found.get(key)) for found in columns))
    return table


def _format(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
