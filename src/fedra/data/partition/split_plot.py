"""Plot of a partition: client sizes above, label counts below."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedra.data.partition.contract import Indices
from fedra.data.partition.report import label_counts
from fedra.pictures import (
    COLORS,
    DASHED,
    GRID,
    INK,
    TITLE,
    add_colorbar,
    name_ticks,
    save_picture,
    style_axes,
    style_heat_map,
    use_counts,
)

ACCENT = COLORS[0]
SHADES = LinearSegmentedColormap.from_list("shades", ["#f4f7f9", "#a9d0d8", ACCENT, "#0b2f45"])
MAX_BUBBLES = (60, 40)
MAX_NAMES = 40
CELL, POINTS_PER_INCH = 0.27, 72


def draw(parts: Sequence[Indices], targets: Indices, class_names: Sequence[str], path: str | os.PathLike[str]) -> Path:
    """Plot a partition to `path` (.svg, .png or .pdf), with its counts in a .csv file next to it; return the path.

    The x axis shows clients. The upper plot shows client sizes. The lower plot shows one bubble per client and class
    with the count as its area, or a heat map if there are too many clients or classes.
    """
    counts = label_counts(parts, targets, len(class_names))
    clients, classes = np.nonzero(counts)
    rows = (
        {"client": client, "class": class_names[label], "examples": counts[client, label]}
        for client, label in zip(clients.tolist(), classes.tolist(), strict=True)
    )
    file = Path(path)
    save_picture(_figure(counts, class_names), file, rows)
    return file


def _figure(counts: Indices, class_names: Sequence[str]) -> Figure:
    clients, classes = counts.shape
    bubbles = clients <= MAX_BUBBLES[0] and classes <= MAX_BUBBLES[1]
    width = float(np.clip(2.4 + (CELL if bubbles else 0.11) * clients, 5.5, 14.0))
    height = float(np.clip(2.2 + CELL * classes, 3.6, 10.5))
    figure = Figure(figsize=(width, height), layout="constrained")
    sizes, labels = figure.subplots(2, 1, sharex=True, height_ratios=[1.1, height - 1.9])
    _draw_sizes(sizes, counts.sum(axis=1))
    style_heat_map(labels)
    (_draw_bubbles if bubbles else _draw_shades)(figure, labels, counts)
    _name_axes(labels, clients, class_names)
    return figure


def _draw_sizes(axes: Axes, sizes: Indices) -> None:
    edges = np.arange(len(sizes) + 1) - 0.5
    if len(sizes) <= MAX_BUBBLES[0]:
        axes.bar(np.arange(len(sizes)), sizes, width=0.72, color=ACCENT)
    else:
        axes.stairs(sizes, edges, fill=True, color=ACCENT)
    median = float(np.median(sizes))
    axes.axhline(median, color=INK, linewidth=0.8, linestyle=DASHED)
    style_axes(axes, grid=False)
    axes.set_title(
        f"{len(sizes)} clients, {sizes.sum():,} examples; smallest {sizes.min():,}, "
        f"median {median:,.0f} (dashed), largest {sizes.max():,}",
        loc="left",
        fontsize=TITLE - 1.5,
        color=INK,
    )
    axes.set_ylabel("examples")
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.tick_params(bottom=False, labelbottom=False)
    axes.spines["bottom"].set_visible(False)


def _draw_bubbles(figure: Figure, axes: Axes, counts: Indices) -> None:
    clients, classes = np.nonzero(counts)
    held = counts[clients, classes]
    diameter = CELL * POINTS_PER_INCH
    axes.scatter(
        clients,
        classes,
        s=np.maximum(held / counts.max() * diameter**2, 0.6),
        c=held,
        cmap=LinearSegmentedColormap.from_list("bubbles", ["#7fb8c4", ACCENT, "#0b2f45"]),
        linewidths=0,
    )
    axes.grid(color=GRID, linewidth=0.6)


def _draw_shades(figure: Figure, axes: Axes, counts: Indices) -> None:
    image = axes.imshow(
        counts.T,
        cmap=SHADES,
        norm=PowerNorm(0.5, vmin=0, vmax=counts.max()),
        aspect="auto",
        interpolation="nearest",
    )
    add_colorbar(figure, image, axes, "examples")


def _name_axes(axes: Axes, clients: int, class_names: Sequence[str]) -> None:
    name_ticks(axes, class_names, axis="y", most=MAX_NAMES)
    use_counts(axes, "client")
    axes.set_ylabel("class")
    axes.set_xlim(-0.5, clients - 0.5)
    axes.set_ylim(len(class_names) - 0.5, -0.5)
