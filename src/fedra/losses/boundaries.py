"""Plots that compare losses: logits and margins over the angle, and the decision boundaries of two classes.

After table 1 and figures 1 and 2 of Han et al. 2026, "An Improved Adaptive Angular Margin Loss Function for Deep
Face Recognition", for any losses with any settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from fedra.errors import ConfigError
from fedra.losses import LOSSES, AngularLoss
from fedra.losses.loss_plot import cosines_at, curve, name_angles, split_at_jumps, with_mean_margin
from fedra.pictures import DASHED, INK, SMALL, line_style, place_legend_below, save_picture, set_title, style_axes

Values = NDArray[np.float64]

COMPARED = ("normalized-softmax", "arcface", "elastic-arcface", "cosface", "cvm", "adaptive-margin")
"""The losses of the paper's figure 2, in its order."""

GRAY, FIRST, SECOND = "#c9ced6", "#dcebf7", "#fbe8d8"
COLUMNS = 3
DEVIATIONS = 2  # how far a random margin is shown from its mean


def draw_margins(losses: Mapping[str, AngularLoss], path: Path | str) -> None:
    """Plot the true-class logit, the margin and the decision boundary of every loss.

    Random margins are drawn at their mean, with thin lines at two standard deviations; running states are the initial
    ones, features have norm 20. Dashed lines in the lower panels: where the logits of both classes are equal.

    Args:
        losses: The losses by the name in the legend.
        path: The file to write; its ending selects the format. The curves are written to a .csv file next to it.
    """
    if not losses:
        raise ConfigError(f"losses must have at least one loss, got none: choose from {', '.join(LOSSES)}")
    rows = -(-len(losses) // COLUMNS)
    figure = Figure(figsize=(11.4, 4.2 + 3.7 * rows), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(4.2, 3.7 * rows))
    curves = _draw_curves(parts[0], losses)
    panels = list(parts[1].subplots(rows, COLUMNS, squeeze=False).flat)
    for axes in panels[len(losses) :]:
        axes.remove()
    for axes, (name, loss) in zip(panels, losses.items(), strict=False):
        _draw_boundary(axes, loss)
        set_title(axes, name)
    patches = [Patch(color=color) for color in (FIRST, GRAY, SECOND)]
    place_legend_below(figure, patches, ["class 1", "margin", "class 2"])
    save_picture(figure, path, curves)


def advantage(loss: AngularLoss, true: Values, other: Values) -> Values:
    """Return the true class's logit minus the other's, without scale, for every pair of a true and an other angle.

    Where it is positive the true class is decided; a random margin is at its mean.
    """
    loss = with_mean_margin(loss)
    first, second = (torch.tensor(grid) for grid in np.meshgrid(true, other, indexing="ij"))
    batch = cosines_at(loss, first.flatten(), second.flatten())
    difference = loss.true_class(batch) - loss.other_classes(batch)[:, 1]
    return difference.reshape(first.shape).numpy()


def margin(loss: AngularLoss, true: Values) -> Values:
    """Return by how much (radians) the other class must be farther than the true class before the true class wins.

    For ArcFace it is the constant m, for the adaptive margin f(t); NaN where no angle within 180 degrees is enough.
    """
    other = np.linspace(0, np.pi, 1441)
    difference = advantage(loss, true, other)
    after = np.argmax(difference >= 0, axis=1)
    rows, before = np.arange(len(true)), np.maximum(after - 1, 0)
    low, high = difference[rows, before], difference[rows, after]
    share = np.where(after > 0, low / np.where(low == high, -1.0, low - high), 0.0)
    edge = other[before] + share * (other[after] - other[before])
    return np.where(difference.max(axis=1) >= 0, edge - true, np.nan)


def _draw_curves(figure: SubFigure, losses: Mapping[str, AngularLoss]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    left, right = figure.subplots(1, 2)
    degrees = np.linspace(0.5, 179.5, 180)
    for index, (name, loss) in enumerate(losses.items()):
        # Later curves are thinner, so an earlier one below them still shows.
        width = 1.4 + 2 * (len(losses) - index) / len(losses)
        style = line_style(index) | {"linewidth": width}
        logit, _ = curve(loss, np.radians(degrees))
        distance = margin(loss, np.radians(degrees))
        left.plot(degrees, split_at_jumps(logit, 0.1), label=name, **style)
        right.plot(degrees, split_at_jumps(distance), **style)
        for angle, value, gap in zip(degrees.tolist(), logit.tolist(), distance.tolist(), strict=True):
            rows.append({"loss": name, "degrees": angle, "logit": value, "margin": gap})
    left.plot(degrees, np.cos(np.radians(degrees)), color=INK, linewidth=1, linestyle=DASHED, label="cos t")
    for axes in (left, right):
        style_axes(axes)
    name_angles(left, "true-class logit / scale", "angle to the true class (degrees)", 180)
    name_angles(right, "margin to the other class (radians)", "angle to the true class (degrees)", 180)
    left.legend(frameon=False, fontsize=SMALL, ncols=1 + len(losses) // 10, handlelength=2.8)
    return rows


def _draw_boundary(axes: Axes, loss: AngularLoss) -> None:
    degrees = np.linspace(0.05, 90, 61)
    for index, variant in enumerate(_variants(loss)):
        # Columns are the first angle. Class 1 is decided where this is positive; class 2 in the mirror image.
        difference = advantage(variant, np.radians(degrees), np.radians(degrees)).T
        if index == 0:
            axes.set_facecolor(GRAY)
            axes.contourf(degrees, degrees, difference, levels=(0, np.inf), colors=(FIRST,))
            axes.contourf(degrees, degrees, difference.T, levels=(0, np.inf), colors=(SECOND,))
        for side in (difference, difference.T):
            if side.min() < 0 < side.max():
                width = 1.5 if index == 0 else 0.7
                axes.contour(degrees, degrees, side, levels=(0.0,), colors=INK, linewidths=width, linestyles="dashed")
    style_axes(axes, grid=False)
    name_angles(axes, "$\\theta_2$ (degrees)", "$\\theta_1$ (degrees)", 90)
    axes.set_ylim(0, 90)
    axes.set_yticks((0, 30, 60, 90))
    axes.set_aspect("equal")


def _variants(loss: AngularLoss) -> list[AngularLoss]:
    """Return the loss; for a random margin also the losses at both ends of its usual range."""
    spread: float = getattr(loss, "sigma", 0.0)
    if not spread:
        return [loss]
    mean: float = loss.margin  # type: ignore[attr-defined]
    ends = (max(mean - DEVIATIONS * spread, 0.0), mean + DEVIATIONS * spread)
    return [loss, *(replace(loss, margin=end) for end in ends)]  # type: ignore[call-arg]
