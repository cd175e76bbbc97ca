"""Losses side by side: their logits and margins over the angle, and the decision boundaries of two classes.

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
from fedra.losses.loss_plot import COLORS, INK, at_mean, broken_at_jumps, curve, dress, seen
from fedra.writing import save_figure

Values = NDArray[np.float64]

COMPARED = ("normalized-softmax", "arcface", "elastic-arcface", "cosface", "cvm", "adaptive-margin")
"""The losses of the paper's figure 2, in its order."""

GRAY, FIRST, SECOND = "#c9ced6", "#dcebf7", "#fbe8d8"
DASHED = (0, (4, 3))
COLUMNS = 3
DEVIATIONS = 2  # how far a random margin is shown from its mean


def draw_margins(losses: Mapping[str, AngularLoss], path: Path | str) -> None:
    """True-class logit, margin and decision boundary of every loss, by the name it is to be called.

    Random margins are drawn at their mean, thinly at two standard deviations from it; running states as they start,
    features at length 20. Dashed in the lower panels: where a class's logit meets its rival's.
    """
    if not losses:
        raise ConfigError(f"name at least one loss to draw: choose from {', '.join(LOSSES)}")
    rows = -(-len(losses) // COLUMNS)
    figure = Figure(figsize=(11.4, 4.2 + 3.7 * rows), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(4.2, 3.7 * rows))
    _draw_curves(parts[0], losses)
    panels = list(parts[1].subplots(rows, COLUMNS, squeeze=False).flat)
    for axes in panels[len(losses) :]:
        axes.remove()
    for axes, (name, loss) in zip(panels, losses.items(), strict=False):
        _draw_boundary(axes, loss)
        axes.set_title(name, fontsize=10, color=INK, loc="left")
    patches = [Patch(color=color) for color in (FIRST, GRAY, SECOND)]
    figure.legend(patches, ["class 1", "margin", "class 2"], loc="outside lower center", ncols=3, frameon=False)
    save_figure(figure, Path(path))


def advantage(loss: AngularLoss, own: Values, rival: Values) -> Values:
    """The true class's logit less its rival's, without their scale, as a table: own angles by rival angles, radians.

    Two classes are decided where it is positive; a random margin is at its mean.
    """
    loss = at_mean(loss)
    first, second = (torch.tensor(grid) for grid in np.meshgrid(own, rival, indexing="ij"))
    looked = seen(loss, first.flatten(), second.flatten())
    ahead = loss.true_class(looked) - loss.other_classes(looked)[:, 1]
    return ahead.reshape(first.shape).numpy()


def margin(loss: AngularLoss, own: Values) -> Values:
    """How much farther (radians) a rival class must be than the own class at each angle before the own one wins.

    ArcFace's is its constant m, the adaptive margin's f(t); NaN where no rival within 180 degrees is far enough.
    """
    rival = np.linspace(0, np.pi, 1441)
    ahead = advantage(loss, own, rival)
    after = np.argmax(ahead >= 0, axis=1)
    rows, before = np.arange(len(own)), np.maximum(after - 1, 0)
    low, high = ahead[rows, before], ahead[rows, after]
    share = np.where(after > 0, low / np.where(low == high, -1.0, low - high), 0.0)
    edge = rival[before] + share * (rival[after] - rival[before])
    return np.where(ahead.max(axis=1) >= 0, edge - own, np.nan)


def _draw_curves(figure: SubFigure, losses: Mapping[str, AngularLoss]) -> None:
    left, right = figure.subplots(1, 2)
    degrees = np.linspace(0.5, 179.5, 180)
    for index, (name, loss) in enumerate(losses.items()):
        # Thinner and thinner, so that a curve hidden by another still shows.
        width = 1.4 + 2 * (len(losses) - index) / len(losses)
        style: dict[str, Any] = {"color": COLORS[index % len(COLORS)], "linewidth": width}
        logit, _ = curve(loss, np.radians(degrees))
        left.plot(degrees, broken_at_jumps(logit, 0.1), label=name, **style)
        right.plot(degrees, broken_at_jumps(margin(loss, np.radians(degrees))), **style)
    left.plot(degrees, np.cos(np.radians(degrees)), color=INK, linewidth=1, linestyle=DASHED, label="cos t")
    dress(left, "true-class logit / scale", "angle to the own class (degrees)", 180)
    dress(right, "margin to the rival class (radians)", "angle to the own class (degrees)", 180)
    left.legend(frameon=False, fontsize=8, ncols=1 + len(losses) // 10)


def _draw_boundary(axes: Axes, loss: AngularLoss) -> None:
    degrees = np.linspace(0.05, 90, 61)
    for index, variant in enumerate(_variants(loss)):
        # Columns are the first angle: positive where class 1 is decided; the mirror image decides class 2.
        ahead = advantage(variant, np.radians(degrees), np.radians(degrees)).T
        if index == 0:
            axes.set_facecolor(GRAY)
            axes.contourf(degrees, degrees, ahead, levels=(0, np.inf), colors=(FIRST,))
            axes.contourf(degrees, degrees, ahead.T, levels=(0, np.inf), colors=(SECOND,))
        for side in (ahead, ahead.T):
            if side.min() < 0 < side.max():
                width = 1.5 if index == 0 else 0.7
                axes.contour(degrees, degrees, side, levels=(0.0,), colors=INK, linewidths=width, linestyles="dashed")
    dress(axes, "$\\theta_2$ (degrees)", "$\\theta_1$ (degrees)", 90)
    axes.set_ylim(0, 90)
    axes.set_yticks((0, 30, 60, 90))
    axes.set_aspect("equal")
    axes.grid(False)


def _variants(loss: AngularLoss) -> list[AngularLoss]:
    """The loss itself; with a random margin also the losses at both ends of its usual range."""
    spread: float = getattr(loss, "sigma", 0.0)
    if not spread:
        return [loss]
    mean: float = loss.margin  # type: ignore[attr-defined]
    ends = (max(mean - DEVIATIONS * spread, 0.0), mean + DEVIATIONS * spread)
    return [loss, *(replace(loss, margin=end) for end in ends)]  # type: ignore[call-arg]
