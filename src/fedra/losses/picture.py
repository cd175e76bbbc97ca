"""Pictures of the losses: the true-class logit over the angle, and the decision margins of two classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from fedra.errors import ConfigError
from fedra.losses import (
    CVM,
    LOSSES,
    AdaptiveMargin,
    AngularLoss,
    ArcFace,
    CosFace,
    ElasticArcFace,
    NormalisedSoftmax,
)
from fedra.losses.base import Cosines

FEATURE_LENGTH = 20.0  # where AdaFace starts its running mean
SETTLED_STEP = 1e6  # SphereFace's annealing is over

INK, GREY, FIRST, SECOND = "#22262b", "#c9ced6", "#dcebf7", "#fbe8d8"
COLOURS = ("#1f77b4", "#d1495b", "#2a9d5c", "#8659b5", "#e08a1e", "#17899b", "#7a6a58", "#c2518f")


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
        value, slope = _curve(LOSSES[name](), np.radians(degrees))
        # Thinner and thinner, so that a curve hidden by another still shows.
        style: dict[str, Any] = {
            "color": COLOURS[index % len(COLOURS)],
            "linewidth": 1.4 + 2 * (len(names) - index) / len(names),
        }
        for axes, line in ((left, value), (right, slope)):
            axes.plot(degrees, _broken_at_jumps(line), label=name, **style)
    left.plot(degrees, np.cos(np.radians(degrees)), color=INK, linewidth=1, linestyle=(0, (4, 3)), label="cos t")
    right.plot(degrees, -np.sin(np.radians(degrees)), color=INK, linewidth=1, linestyle=(0, (4, 3)))
    _dress(left, "true-class logit / scale", "angle to the own class (degrees)", 180)
    _dress(right, "its slope, by radian", "angle to the own class (degrees)", 180)
    left.legend(frameon=False, fontsize=9)
    _save(figure, path)


def margins(path: Path | str) -> None:
    """The adaptive margin over the angle, and the decision boundaries of six losses for two classes.

    After figures 1 and 2 of Han et al. 2026. Dashed: where a class's logit meets its rival's.
    """
    adaptive = AdaptiveMargin()
    elastic = ElasticArcFace(sigma=0)
    figure = Figure(figsize=(13.5, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 4, width_ratios=(1.25, 1, 1, 1))
    _draw_margin(figure.add_subplot(grid[:, 0]), adaptive)
    panels: tuple[tuple[str, tuple[AngularLoss, ...]], ...] = (
        ("normalised softmax", (NormalisedSoftmax(),)),
        ("ArcFace", (ArcFace(),)),
        (
            "ElasticFace-Arc, $m \\pm 2\\sigma$",
            (elastic, replace(elastic, margin=0.4), replace(elastic, margin=0.6)),
        ),
        ("CosFace", (CosFace(),)),
        ("CVM", (CVM(),)),
        ("adaptive margin", (adaptive,)),
    )
    for index, (title, losses) in enumerate(panels):
        axes = figure.add_subplot(grid[index // 3, 1 + index % 3])
        _draw_boundary(axes, losses)
        axes.set_title(f"{'abcdef'[index]})  {title}", fontsize=11, color=INK, loc="left")
    patches = [Patch(color=FIRST), Patch(color=GREY), Patch(color=SECOND)]
    figure.legend(patches, ["class 1", "margin", "class 2"], loc="outside lower center", ncols=3, frameon=False)
    _save(figure, path)


def _seen(loss: AngularLoss, cosine: Tensor) -> Cosines:
    """Every angle as one example of class 0, beside a second class at the same angle."""
    weight = torch.ones(2, 2, dtype=cosine.dtype)
    state = loss.init_state(weight)
    if "step" in state:
        state["step"].fill_(SETTLED_STEP)
    norms = torch.full_like(cosine, FEATURE_LENGTH)
    labels = torch.zeros(len(cosine), dtype=torch.long)
    values = torch.stack([cosine, cosine], dim=1)
    return Cosines(values, labels, None, norms, state, loss.init_learned(weight))


def _curve(loss: AngularLoss, angles: Any) -> tuple[Any, Any]:
    if hasattr(loss, "sigma"):
        loss = replace(loss, sigma=0.0)  # type: ignore[call-arg]
    angle = torch.tensor(angles, requires_grad=True)
    value = loss.true_class(_seen(loss, angle.cos()))
    (slope,) = torch.autograd.grad(value.sum(), angle)
    return value.detach().numpy(), slope.numpy()


def _broken_at_jumps(line: Any, largest: float = 0.04) -> Any:
    """A gap where the rule changes, instead of a vertical stroke that is not part of the function."""
    jumps = np.flatnonzero(np.abs(np.diff(line, 2)) > largest)
    return np.where(np.isin(np.arange(len(line)), jumps + 1), np.nan, line)


def _draw_margin(axes: Axes, loss: AdaptiveMargin) -> None:
    degrees = np.linspace(0, 180, 361)
    adaptive = loss.m1 * np.sin(np.radians(degrees)) ** 2 + loss.m2
    axes.fill_between(degrees, loss.m2, adaptive, color=COLOURS[0], alpha=0.12, linewidth=0)
    axes.plot(degrees, adaptive, color=COLOURS[0], linewidth=2.2)
    axes.axhline(loss.m2, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate("ArcFace: $m_2$", (4, loss.m2), (0, -14), textcoords="offset points", fontsize=9, color=INK)
    _dress(axes, "margin (radians)", "angle to the own class (degrees)", 180)
    axes.set_ylim(loss.m2 - 0.3 * loss.m1, loss.m2 + 1.3 * loss.m1)
    axes.set_title("$f(\\theta) = m_1 \\sin^2\\theta + m_2$", fontsize=11, color=INK, loc="left")


def _draw_boundary(axes: Axes, losses: Sequence[AngularLoss]) -> None:
    degrees = np.linspace(0.05, 90, 361)
    for index, loss in enumerate(losses):
        seen = _seen(loss, torch.tensor(np.radians(degrees)).cos())
        own, rival = loss.true_class(seen).numpy(), loss.other_classes(seen)[:, 1].numpy()
        # Rows are the second angle: positive where the first class is decided, and the mirror image.
        first = own[None, :] - rival[:, None]
        if index == 0:
            axes.set_facecolor(GREY)
            axes.contourf(degrees, degrees, first, levels=(0, np.inf), colors=(FIRST,))
            axes.contourf(degrees, degrees, first.T, levels=(0, np.inf), colors=(SECOND,))
        style: dict[str, Any] = {
            "colors": INK,
            "linewidths": 1.5 if index == 0 else 0.7,
            "linestyles": "dashed",
        }
        for side in (first, first.T):
            axes.contour(degrees, degrees, side, levels=(0.0,), **style)
    _dress(axes, "$\\theta_2$ (degrees)", "$\\theta_1$ (degrees)", 90)
    axes.set_ylim(0, 90)
    axes.set_yticks((0, 30, 60, 90))
    axes.set_aspect("equal")
    axes.grid(False)


def _dress(axes: Axes, vertical: str, horizontal: str, largest: int) -> None:
    axes.set_xlim(0, largest)
    axes.set_xticks(range(0, largest + 1, 30))
    axes.set_xlabel(horizontal, color=INK)
    axes.set_ylabel(vertical, color=INK)
    axes.grid(color="#e6e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _save(figure: Figure, path: Path | str) -> None:
    """Write under a temporary name, then rename, so that nobody reads half a picture."""
    path = Path(path)
    kind = path.suffix.lstrip(".")
    FigureCanvasAgg(figure)
    if kind not in figure.canvas.get_supported_filetypes():
        raise ConfigError(f"cannot draw to '{path}': end its name in .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot draw to '{path}': the folder '{path.parent}' does not exist")
    temporary = path.with_name(f".{path.name}.part")
    figure.savefig(temporary, format=kind, dpi=150)
    os.replace(temporary, path)
