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
from fedra.errors import ConfigError

INK, QUIET, PAPER, ACCENT = "#22303c", "#8a97a3", "#ffffff", "#1f6f8b"
SHADES = LinearSegmentedColormap.from_list("shades", ["#f4f7f9", "#a9d0d8", ACCENT, "#0b2f45"])
MAX_BUBBLES = (60, 40)
MAX_NAMES = 40
CELL, POINTS_PER_INCH = 0.27, 72
FORMATS = ("png", "svg")


def draw(parts: Sequence[Indices], targets: Indices, class_names: Sequence[str], path: str | os.PathLike[str]) -> Path:
    """Plot a partition to `path` (.png or .svg) and return the path.

    The x axis shows clients. The upper plot shows client sizes. The lower plot shows one bubble per client and class
    with the count as its area, or a heat map if there are too many clients or classes.
    """
    file = Path(path)
    kind = file.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise ConfigError(f"the path of a plot must end with .png or .svg, got '{file}'")
    figure = _figure(label_counts(parts, targets, len(class_names)), class_names)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    figure.savefig(
        unfinished, format=kind, dpi=160, facecolor=PAPER, metadata={"Date": None} if kind == "svg" else None
    )
    unfinished.replace(file)
    return file


def _figure(counts: Indices, class_names: Sequence[str]) -> Figure:
    clients, classes = counts.shape
    bubbles = clients <= MAX_BUBBLES[0] and classes <= MAX_BUBBLES[1]
    width = float(np.clip(2.4 + (CELL if bubbles else 0.11) * clients, 5.5, 14.0))
    height = float(np.clip(2.2 + CELL * classes, 3.6, 10.5))
    figure = Figure(figsize=(width, height), layout="constrained")
    sizes, labels = figure.subplots(2, 1, sharex=True, height_ratios=[1.1, height - 1.9])
    _draw_sizes(sizes, counts.sum(axis=1))
    (_draw_bubbles if bubbles else _draw_shades)(labels, counts)
    _name_axes(labels, clients, class_names)
    return figure


def _draw_sizes(axes: Axes, sizes: Indices) -> None:
    edges = np.arange(len(sizes) + 1) - 0.5
    if len(sizes) <= MAX_BUBBLES[0]:
        axes.bar(np.arange(len(sizes)), sizes, width=0.72, color=ACCENT)
    else:
        axes.stairs(sizes, edges, fill=True, color=ACCENT)
    median = float(np.median(sizes))
    axes.axhline(median, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_title(
        f"{len(sizes)} clients, {sizes.sum():,} examples; smallest {sizes.min():,}, "
        f"median {median:,.0f} (dashed), largest {sizes.max():,}",
        loc="left",
        fontsize=8.5,
        color=INK,
    )
    axes.set_ylabel("examples", fontsize=8.5, color=INK)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.tick_params(bottom=False, labelbottom=False, colors=QUIET, labelsize=8)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(QUIET)


def _draw_bubbles(axes: Axes, counts: Indices) -> None:
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
    axes.set_axisbelow(True)
    axes.grid(color="#e8edf0", linewidth=0.6)


def _draw_shades(axes: Axes, counts: Indices) -> None:
    image = axes.imshow(
        counts.T,
        cmap=SHADES,
        norm=PowerNorm(0.5, vmin=0, vmax=counts.max()),
        aspect="auto",
        interpolation="nearest",
    )
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, aspect=30)
    bar.set_label("examples", fontsize=8.5, color=INK)
    bar.ax.tick_params(colors=QUIET, labelsize=8)
    bar.outline.set_visible(False)


def _name_axes(axes: Axes, clients: int, class_names: Sequence[str]) -> None:
    step = -(-len(class_names) // MAX_NAMES)
    named = range(0, len(class_names), step)
    axes.set_yticks(list(named), [_short(class_names[label]) for label in named])
    axes.set_xlim(-0.5, clients - 0.5)
    axes.set_ylim(len(class_names) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.set_xlabel("client", fontsize=8.5, color=INK)
    axes.tick_params(colors=INK, labelsize=8, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:17]}…"
