"""A picture of any losses: the true-class logit over the angle, and its slope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fedra.errors import ConfigError
from fedra.losses import LOSSES, AngularLoss
from fedra.losses.angular_loss import Cosines
from fedra.writing import save_figure

FEATURE_LENGTH = 20.0  # where AdaFace starts its running mean
SETTLED_STEP = 1e6  # SphereFace's annealing is over

INK = "#22262b"
COLORS = ("#1f77b4", "#d1495b", "#2a9d5c", "#8659b5", "#e08a1e", "#17899b", "#7a6a58", "#c2518f")


def draw(names: Sequence[str], path: Path | str) -> None:
    """The true-class logit, without its scale, and its slope over the angle, for losses at their defaults.

    Random margins are drawn at their mean, running states as they start, features at length 20.
    """
    if not names:
        raise ConfigError(f"name at least one loss to draw: choose from {', '.join(LOSSES)}")
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    degrees = np.linspace(0.25, 179.75, 719)
    for index, name in enumerate(names):
        value, slope = curve(LOSSES[name](), np.radians(degrees))
        # Thinner and thinner, so that a curve hidden by another still shows.
        style: dict[str, Any] = {
            "color": COLORS[index % len(COLORS)],
            "linewidth": 1.4 + 2 * (len(names) - index) / len(names),
        }
        for axes, line in ((left, value), (right, slope)):
            axes.plot(degrees, broken_at_jumps(line), label=name, **style)
    left.plot(degrees, np.cos(np.radians(degrees)), color=INK, linewidth=1, linestyle=(0, (4, 3)), label="cos t")
    right.plot(degrees, -np.sin(np.radians(degrees)), color=INK, linewidth=1, linestyle=(0, (4, 3)))
    dress(left, "true-class logit / scale", "angle to the own class (degrees)", 180)
    dress(right, "its slope, by radian", "angle to the own class (degrees)", 180)
    left.legend(frameon=False, fontsize=9)
    save_figure(figure, Path(path))


def seen(loss: AngularLoss, own: Tensor, rival: Tensor) -> Cosines:
    """Every pair of angles as one example of class 0: `own` to its class, `rival` to a second class."""
    weight = torch.ones(2, 2, dtype=own.dtype)
    state = loss.init_state(weight)
    if "step" in state:
        state["step"].fill_(SETTLED_STEP)
    norms = torch.full_like(own, FEATURE_LENGTH)
    labels = torch.zeros(len(own), dtype=torch.long)
    values = torch.stack([own.cos(), rival.cos()], dim=1)
    drawn = loss.draw(len(own), torch.Generator(), own.dtype)
    return Cosines(values, labels, None, norms, state, loss.init_learned(weight), drawn)


def at_mean(loss: AngularLoss) -> AngularLoss:
    """A loss with random margins at their mean, any other as it is."""
    return replace(loss, sigma=0.0) if hasattr(loss, "sigma") else loss  # type: ignore[call-arg]


def curve(loss: AngularLoss, angles: Any) -> tuple[Any, Any]:
    """The true-class logit without its scale over the angle (radians), and its slope."""
    loss = at_mean(loss)
    angle = torch.tensor(angles, requires_grad=True)
    value = loss.true_class(seen(loss, angle, angle))
    (slope,) = torch.autograd.grad(value.sum(), angle)
    return value.detach().numpy(), slope.numpy()


def broken_at_jumps(line: Any, largest: float = 0.04) -> Any:
    """A gap where the rule changes, instead of a vertical stroke that is not part of the function."""
    jumps = np.flatnonzero(np.abs(np.diff(line, 2)) > largest)
    return np.where(np.isin(np.arange(len(line)), jumps + 1), np.nan, line)


def dress(axes: Axes, vertical: str, horizontal: str, largest: int) -> None:
    """Name the axes; angles run from 0 to `largest` degrees."""
    axes.set_xlim(0, largest)
    axes.set_xticks(range(0, largest + 1, 30))
    axes.set_xlabel(horizontal, color=INK)
    axes.set_ylabel(vertical, color=INK)
    axes.grid(color="#e6e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
