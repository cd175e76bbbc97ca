"""Plots and a table of curvature: eigenvalues, spectral densities, and landscapes of several runs on one scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from fedra.analysis.curvature import Curvature
from fedra.analysis.landscape import Landscape
from fedra.pictures import (
    INK,
    LABEL,
    SHADES,
    SMALL,
    add_colorbar,
    line_style,
    make_panels,
    place_legend,
    save_picture,
    set_title,
    style_axes,
    use_counts,
)

LEVELS = 12
"""Number of contour lines."""
SMOOTHING = 0.01
"""Width of the bell around a node of a density, relative to the range of eigenvalues."""


def draw_eigenvalues(found: Mapping[str, Curvature], path: Path) -> None:
    """Plot the largest eigenvalues of every run by their rank."""
    figure, (axes,) = make_panels(width=5.6, height=3.8)
    rows = []
    for number, (name, curvature) in enumerate(found.items()):
        values = curvature.eigenvalues
        axes.plot(range(1, len(values) + 1), values, label=name, **line_style(number, len(values)))
        rows += [{"run": name, "rank": rank, "eigenvalue": value} for rank, value in enumerate(values.tolist(), 1)]
    axes.set(ylabel="eigenvalue of the Hessian")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    use_counts(axes, "rank")
    place_legend(axes)
    save_picture(figure, path, rows)


def draw_density(found: Mapping[str, Curvature], path: Path) -> None:
    """Plot the spectral densities, smoothed by bells of 1 % of the range, on a logarithmic axis."""
    figure, (axes,) = make_panels(width=6.4, height=3.8)
    low = min(float(one.nodes.min()) for one in found.values())
    high = max(float(one.nodes.max()) for one in found.values())
    width = SMOOTHING * max(high - low, 1e-12)
    grid = np.linspace(low - 4 * width, high + 4 * width, 800)
    for number, (name, one) in enumerate(found.items()):
        bells = np.exp(-0.5 * ((grid[:, None] - one.nodes) / width) ** 2) / (width * np.sqrt(2 * np.pi))
        axes.plot(grid, bells @ one.masses, label=name, **line_style(number))
    # The axis ends a little below the bell of a single eigenvalue.
    single = 1 / (max(one.dimension for one in found.values()) * width * np.sqrt(2 * np.pi))
    axes.set(xlabel="eigenvalue of the Hessian", ylabel="density", yscale="log", ylim=(single / 10, 3 / width))
    place_legend(axes)
    nodes = (
        {"run": name, "node": node, "mass": mass}
        for name, one in found.items()
        for node, mass in zip(one.nodes.tolist(), one.masses.tolist(), strict=True)
    )
    save_picture(figure, path, nodes)


def draw_landscapes(found: Mapping[str, Landscape], path: Path) -> None:
    """Plot landscapes as surfaces above and contours below, one column per run, all on one scale of the loss."""
    finite = np.concatenate([one.values[np.isfinite(one.values)] for one in found.values()])
    low, high = float(finite.min()), float(finite.max())
    high = high if high > low else low + 1e-6
    figure = Figure(figsize=(3.5 * len(found) + 0.9, 6.6), layout="constrained")
    contours = []
    for number, (name, one) in enumerate(found.items()):
        values = np.where(np.isfinite(one.values), one.values, high)
        surface: Any = figure.add_subplot(2, len(found), 1 + number, projection="3d")
        _draw_surface(surface, one, values, (low, high))
        set_title(surface, name)
        axes = figure.add_subplot(2, len(found), 1 + len(found) + number)
        contours.append(axes)
        shades = _draw_contours(axes, one, values, (low, high))
    add_colorbar(figure, shades, contours, "loss")
    save_picture(figure, path, _rows(found))


def _draw_surface(axes: Any, one: Landscape, values: NDArray[np.float64], scale: tuple[float, float]) -> None:
    across, down = np.meshgrid(one.offsets, one.offsets)
    axes.plot_surface(
        across, down, values, cmap=SHADES, vmin=scale[0], vmax=scale[1], rstride=1, cstride=1, linewidth=0.2,
        edgecolor=(0, 0, 0, 0.25), antialiased=True,
    )  # fmt: skip
    axes.set_zlim(*scale)
    axes.tick_params(labelsize=SMALL - 1, pad=-2)
    ticks = np.linspace(one.offsets[0], one.offsets[-1], 3)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.set_zlabel("loss", fontsize=LABEL, color=INK, labelpad=-4)
    axes.view_init(elev=28, azim=-55)
    axes.set_box_aspect((1, 1, 0.8), zoom=0.95)


def _draw_contours(axes: Axes, one: Landscape, values: NDArray[np.float64], scale: tuple[float, float]) -> Any:
    style_axes(axes, grid=False)
    levels = MaxNLocator(LEVELS).tick_values(*scale)
    shades = axes.contourf(one.offsets, one.offsets, values, levels=levels, cmap=SHADES)
    axes.contour(one.offsets, one.offsets, values, levels=levels, colors="white", linewidths=0.5, alpha=0.8)
    axes.plot([0], [0], marker="+", color="white", markersize=9, markeredgewidth=1.6)
    ticks = np.linspace(one.offsets[0], one.offsets[-1], 5)
    axes.set(xlabel=one.axes[0], ylabel=one.axes[1])
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_aspect("equal")
    return shades


def _rows(found: Mapping[str, Landscape]) -> Iterator[dict[str, Any]]:
    for name, one in found.items():
        for down, row in zip(one.offsets.tolist(), one.values.tolist(), strict=True):
            for across, value in zip(one.offsets.tolist(), row, strict=True):
                yield {"run": name, "first": across, "second": down, "loss": value}


COLUMNS = {
    "loss": "loss",
    "lambda_1": "lambda_1",
    "lambda_1_over_lambda_5": "lambda_1 / lambda_5",
    "trace": "trace",
    "trace_error": "± (standard error)",
    "smallest_eigenvalue": "smallest",
}


def curvature_table(found: Mapping[str, Curvature]) -> Table:
    """Build a table with one row per run."""
    table = Table(header_style="bold")
    table.add_column("run")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    for name, one in found.items():
        metrics = one.metrics()
        texts = ["-" if metrics[key] is None else f"{metrics[key]:.4g}" for key in COLUMNS]
        table.add_row(escape(name), *texts)
    return table
