"""The common style of all plots: colors, lines that look different, axes, legends, and numbers as CSV.

The colors are those of Okabe and Ito ("Color universal design", 2008), with two that are darker than theirs, so every
line shows on white paper. Lines also differ by dashes and markers, so they stay different in a gray print.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.path import Path as Shape
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox, IdentityTransform

from fedra.writing import save_figure, write_atomically

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#1b1e23", "#56b4e9", "#e69f00", "#882255")
"""Eight colors that stay apart for readers with any kind of color blindness."""
DASHES: tuple[Any, ...] = (
    "solid",
    (0, (5, 1.6)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (1.6, 1.2)),
    (0, (9, 2)),
    (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5)),
    (0, (3, 1.2)),
    (0, (9, 2, 3, 2)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
INK, QUIET, GRID = "#22262b", "#5f6973", "#e4e7eb"
SHADES, DIVERGING = "cividis", "RdBu"
"""Color maps of quantities, and of quantities around zero; both are safe for color-blind readers."""
DASHED = (0, (4, 3))
"""Dashes of reference lines: thresholds, medians, baselines."""
TITLE, LABEL, SMALL = 10.0, 9.0, 8.0
"""Font sizes in points."""
SHOWN_MARKERS = 8
"""Number of markers on a line with more points."""


def line_style(number: int, points: int = 0) -> dict[str, Any]:
    """Return color, dashes and markers of a line; eight lines differ in all three, sixty-four in some.

    Args:
        number: The position of the line in its plot, from 0.
        points: The number of points, so long lines show few markers at places that differ by line; 0 for no markers.

    Returns:
        Keywords of `Axes.plot`.

    Example:
        >>> line_style(1)["color"]
        '#d55e00'
    """
    turn = number // len(COLORS)
    style: dict[str, Any] = {"color": COLORS[number % len(COLORS)], "linewidth": 1.7}
    style["linestyle"] = DASHES[(number + turn) % len(DASHES)]
    if points:
        every = max(-(-points // SHOWN_MARKERS), 1)
        style |= {"marker": MARKERS[(number + 3 * turn) % len(MARKERS)], "markersize": 4.5, "markeredgewidth": 0}
        style["markevery"] = (number * every // len(COLORS) % every, every)
    return style


def make_panels(
    rows: int = 1, columns: int = 1, *, width: float = 4.8, height: float = 3.6, **settings: Any
) -> tuple[Figure, list[Axes]]:
    """Create a figure with panels in the common style.

    Args:
        rows: Number of rows.
        columns: Number of columns.
        width: Width of a panel in inches.
        height: Height of a panel in inches.
        **settings: Keywords of `Figure.subplots`, such as `sharey`.

    Returns:
        The figure and its panels, row by row.

    Example:
        >>> figure, (left, right) = make_panels(1, 2)
    """
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **settings).flat)
    for axes in panels:
        style_axes(axes)
    return figure, panels


def style_axes(axes: Axes, *, grid: bool = True) -> None:
    """Apply the common style: a quiet grid below the data, no frame at the top and right, readable labels."""
    axes.set_axisbelow(True)
    axes.grid(grid, color=GRID, linewidth=0.8) if grid else axes.grid(False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(QUIET)
    axes.tick_params(colors=QUIET, labelcolor=INK, labelsize=SMALL, which="both")
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(fontsize=LABEL, color=INK)


def style_heat_map(axes: Axes) -> None:
    """Apply the common style to a heat map: no grid, frame or tick marks."""
    style_axes(axes, grid=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, which="both")


def set_title(axes: Axes, text: str) -> None:
    """Set a panel's title, at its left."""
    axes.set_title(text, fontsize=TITLE, color=INK, loc="left")


def use_counts(axes: Axes, label: str = "round") -> None:
    """Name the x axis and place its ticks at whole numbers."""
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))


def name_ticks(axes: Axes, names: Sequence[str], *, axis: str = "x", most: int = 40) -> None:
    """Label the positions 0, 1, ... by names; long ones are cut, tilted if they would overlap, thinned above `most`."""
    step = -(-len(names) // most) or 1
    shown = [shorten(name) for name in names[::step]]
    spots = range(0, len(names), step)
    if axis == "y":
        axes.set_yticks(spots, shown, fontsize=SMALL)
        return
    inches = axes.get_position().width * axes.get_figure(root=True).get_figwidth()  # type: ignore[union-attr]
    fits = sum(len(name) + 2 for name in shown) * 0.075 < 0.85 * inches
    axes.set_xticks(
        spots,
        shown,
        fontsize=SMALL,
        rotation=0 if fits else 40,
        ha="center" if fits else "right",
        rotation_mode="anchor",
    )


def shorten(name: str, most: int = 18) -> str:
    """Cut a long name for a tick label."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def add_colorbar(figure: Figure, image: Any, axes: Axes | Sequence[Axes], label: str) -> None:
    """Add a color bar with its quantity and unit."""
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=30)
    bar.set_label(label, fontsize=LABEL, color=INK)
    bar.ax.tick_params(colors=QUIET, labelcolor=INK, labelsize=SMALL)
    bar.outline.set_visible(False)


def place_legend(axes: Axes, *, handles: Sequence[Artist] | None = None, columns: int = 1, title: str = "") -> Legend:
    """Add a legend at the free corner of a panel, or below the figure where it would cover data.

    Call it last, after all data and limits are set.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    found = list(handles) if handles is not None else axes.get_legend_handles_labels()[0]
    look: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "title": title or None, "title_fontsize": SMALL}
    look["handlelength"] = 2.8  # long enough to show the dashes
    for corner in ("upper right", "lower right", "upper left", "lower left"):
        legend = axes.legend(handles=found, loc=corner, ncols=columns, **look)
        figure.draw_without_rendering()
        box = legend.get_window_extent()
        if _contains(axes.get_window_extent(), box) and not _covers(axes, box):
            return legend
    legend.remove()
    labels = [str(handle.get_label()) for handle in found]
    return place_legend_below(figure, found, labels, title=title)


def place_legend_below(
    figure: Figure, handles: Sequence[Artist], labels: Sequence[str] | None = None, *, title: str = ""
) -> Legend:
    """Add one legend for all panels below them, in as many columns as fit."""
    names = list(labels) if labels is not None else [str(handle.get_label()) for handle in handles]
    widest = max((len(name) for name in names), default=1)
    fitting = int(figure.get_figwidth() / (0.07 * widest + 0.65))
    return figure.legend(
        handles=list(handles),
        labels=names,
        loc="outside lower center",
        ncols=max(min(fitting, len(names)), 1),
        frameon=False,
        fontsize=SMALL,
        title=title or None,
        title_fontsize=SMALL,
        handlelength=2.8,
    )


def _contains(outer: Bbox, inner: Bbox) -> bool:
    return bool(inner.x0 >= outer.x0 and inner.x1 <= outer.x1 and inner.y0 >= outer.y0 and inner.y1 <= outer.y1)


def _covers(axes: Axes, box: Bbox) -> bool:
    """Whether a box in pixels covers a line, an area, a bar or a point of the panel."""
    for line in axes.lines:
        if line.get_transform().contains_branch(axes.transData) and _meets(
            line.get_path(), line.get_transform(), box, filled=False
        ):
            return True
    for patch in axes.patches:
        if _meets(patch.get_path(), patch.get_transform(), box, filled=True):
            return True
    for collection in axes.collections:
        offsets = np.asarray(collection.get_offsets())
        if len(offsets) and collection.get_offset_transform() is not IdentityTransform() and np.any(offsets):
            spots = collection.get_offset_transform().transform(offsets)
            if np.any((spots > (box.x0, box.y0)).all(axis=1) & (spots < (box.x1, box.y1)).all(axis=1)):
                return True
        elif any(_meets(path, collection.get_transform(), box, filled=True) for path in collection.get_paths()):
            return True
    return False


def _meets(path: Shape, transform: Any, box: Bbox, *, filled: bool) -> bool:
    drawn = transform.transform_path(path)
    known = np.isfinite(drawn.vertices).all(axis=1)
    if not known.all():  # a gap in a line
        drawn = Shape(drawn.vertices[known])
    return len(drawn.vertices) > 0 and bool(drawn.intersects_bbox(box, filled))


def save_numbers(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write the numbers behind a plot next to it, as CSV with one line per point.

    Args:
        path: The file of the plot; the numbers get the same name with the ending .csv.
        rows: The lines; all have the same keys. None is written as an empty field.

    Returns:
        The file.

    Example:
        >>> save_numbers("curves.svg", [{"run": "fedavg", "round": 1, "accuracy": 0.5}])
    """
    file = Path(path).with_suffix(".csv")
    lines = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text.getvalue().encode(errors="backslashreplace"), durable=False)
    return file


def save_picture(figure: Figure, path: Path | str, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Save a plot, and the numbers behind it as CSV next to it; return the CSV file."""
    save_figure(figure, path)
    return save_numbers(path, rows)
