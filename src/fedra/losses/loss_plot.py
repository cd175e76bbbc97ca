"""Plots of losses: the true-class logit over the angle, and its derivative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from fedra.errors import ConfigError
from fedra.losses import LOSSES, AngularLoss
from fedra.losses.angular_loss import Cosines
from fedra.pictures import DASHED, INK, line_style, make_panels, place_legend_below
from fedra.writing import save_figure

FEATURE_NORM = 20.0  # AdaFace's initial running mean
LATE_STEP = 1e6  # after SphereFace's annealing


def draw(names: Sequence[str], path: Path | str) -> None:
    """Plot the true-class logit, without its scale, and its derivative over the angle, for losses at their defaults.

    Random margins are at their mean, running states are the initial ones, features have norm 20.

    Args:
        names: Names of registered losses (`fedra list losses`).
        path: The file to write; its ending selects the format.
    """
    if not names:
        raise ConfigError(f"names must have at least one loss, got none: choose from {', '.join(LOSSES)}")
    figure, (left, right) = make_panels(1, 2, width=5.0, height=4.2)
    degrees = np.linspace(0.25, 179.75, 719)
    for index, name in enumerate(names):
        value, derivative = curve(LOSSES[name](), np.radians(degrees))
        # Later curves are thinner, so an earlier one below them still shows.
        style = line_style(index) | {"linewidth": 1.4 + 2 * (len(names) - index) / len(names)}
        for axes, line in ((left, value), (right, derivative)):
            axes.plot(degrees, split_at_jumps(line), label=name, **style)
    left.plot(degrees, np.cos(np.radians(degrees)), color=INK, linewidth=1, linestyle=DASHED, label="cos t")
    right.plot(degrees, -np.sin(np.radians(degrees)), color=INK, linewidth=1, linestyle=DASHED)
    name_angles(left, "true-class logit / scale", "angle to the true class (degrees)", 180)
    name_angles(right, "derivative (per radian)", "angle to the true class (degrees)", 180)
    place_legend_below(figure, left.get_legend_handles_labels()[0])
    save_figure(figure, Path(path))


def cosines_at(loss: AngularLoss, true: Tensor, other: Tensor) -> Cosines:
    """Return every pair of angles as one example of class 0: `true` to its class, `other` to a second class."""
    weight = torch.ones(2, 2, dtype=true.dtype)
    state = loss.init_state(weight)
    if "step" in state:
        state["step"].fill_(LATE_STEP)
    norms = torch.full_like(true, FEATURE_NORM)
    labels = torch.zeros(len(true), dtype=torch.long)
    values = torch.stack([true.cos(), other.cos()], dim=1)
    drawn = loss.draw(len(true), torch.Generator(), true.dtype)
    return Cosines(values, labels, None, norms, state, loss.init_learned(weight), drawn)


def with_mean_margin(loss: AngularLoss) -> AngularLoss:
    """Return a loss with random margins at their mean, any other as it is."""
    return replace(loss, sigma=0.0) if hasattr(loss, "sigma") else loss  # type: ignore[call-arg]


def curve(loss: AngularLoss, angles: Any) -> tuple[Any, Any]:
    """Return the true-class logit without its scale over the angle (radians), and its derivative."""
    loss = with_mean_margin(loss)
    angle = torch.tensor(angles, requires_grad=True)
    value = loss.true_class(cosines_at(loss, angle, angle))
    (derivative,) = torch.autograd.grad(value.sum(), angle)
    return value.detach().numpy(), derivative.numpy()


def split_at_jumps(line: Any, largest: float = 0.04) -> Any:
    """Put a gap where the rule changes, instead of a vertical line that is not part of the function."""
    jumps = np.flatnonzero(np.abs(np.diff(line, 2)) > largest)
    return np.where(np.isin(np.arange(len(line)), jumps + 1), np.nan, line)


def name_angles(axes: Axes, vertical: str, horizontal: str, largest: int) -> None:
    """Label the axes; angles run from 0 to `largest` degrees."""
    axes.set_xlim(0, largest)
    axes.set_xticks(range(0, largest + 1, 30))
    axes.set(xlabel=horizontal, ylabel=vertical)
