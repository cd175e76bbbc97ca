"""The loss on a plane through a model's weights, along eigenvectors of its Hessian or random directions.

Random directions are normalized by filter (Li et al., "Visualizing the loss landscape of neural nets", NeurIPS 2018):
each filter of a direction is as long as the model's own, so models of different scales can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedra.analysis.global_loss import GlobalLoss
from fedra.core import tree
from fedra.core.evaluate import ignore_progress
from fedra.core.random import generator
from fedra.core.tree import Params
from fedra.errors import ConfigError


@dataclass(frozen=True)
class Landscape:
    """The loss on a square grid around a model's weights, as `measure_landscape` returns it.

    Args:
        offsets: Positions of the grid along both directions (points,), with 0 in the middle.
        values: The loss (points, points); rows are positions along the second direction.
        axes: Names of the two directions.

    Example:
        ```python
        found = measure_landscape(loss, *random_directions(loss))
        print(found.values.max() - found.values.min())
        ```
    """

    offsets: NDArray[np.float64]
    values: NDArray[np.float64]
    axes: tuple[str, str] = ("first direction", "second direction")


def random_directions(loss: GlobalLoss, *, seed: int = 0) -> tuple[Params, Params]:
    """Draw two directions whose filters have the lengths of the model's own.

    A filter is a row of a weight: what leads to one output. Biases and the parameters of normalization layers, which
    are vectors, are not moved.

    Args:
        loss: The loss, with the model's weights.
        seed: Seed of the draw; models of one network with equal seeds get directions that differ by lengths alone.

    Returns:
        Two directions, as parameters by name.

    Example:
        ```python
        first, second = random_directions(loss, seed=1)
        ```
    """
    found = []
    for number in range(2):
        draw = generator(seed, "directions", number)
        direction = {}
        for name, value in loss.params.items():
            noise = torch.randn(value.shape, generator=draw).to(value)
            direction[name] = _normalize_filters(noise, value) if value.dim() > 1 else torch.zeros_like(value)
        found.append(direction)
    return found[0], found[1]


def _normalize_filters(noise: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    rest = tuple(range(1, value.dim()))
    wanted = value.pow(2).sum(dim=rest, keepdim=True).sqrt()
    return noise * wanted / noise.pow(2).sum(dim=rest, keepdim=True).sqrt().clamp(min=1e-12)


def measure_landscape(
    loss: GlobalLoss,
    first: Params,
    second: Params,
    *,
    radius: float = 1.0,
    points: int = 15,
    axes: tuple[str, str] = ("first direction", "second direction"),
    done: Callable[[int], None] = ignore_progress,
) -> Landscape:
    """Measure the loss on a square grid spanned by two directions from the weights.

    Args:
        loss: The loss, at its weights.
        first: The direction of the columns, as parameters by name.
        second: The direction of the rows.
        radius: Largest offset along each direction, in units of its length.
        points: Number of positions along each direction; an odd number, so one of them is at the weights.
        axes: Names of the directions for plots.
        done: Called with 1 after each of the points * points losses.

    Returns:
        The positions and losses.

    Raises:
        ConfigError: If the radius is not positive, or the number of points is even or below 3.

    Example:
        ```python
        found = measure_landscape(loss, *curvature.eigenvectors[:2], radius=0.5)
        ```
    """
    if not radius > 0:
        raise ConfigError(f"radius must be positive, got {radius:g}")
    if points < 3 or points % 2 == 0:
        raise ConfigError(f"points must be odd and at least 3, got {points}")
    offsets = np.linspace(-radius, radius, points)
    values = np.empty((points, points))
    for row, down in enumerate(offsets):
        start = tree.add(loss.params, second, float(down))
        for column, across in enumerate(offsets):
            values[row, column] = loss.value(tree.add(start, first, float(across)))
            done(1)
    return Landscape(offsets, values, axes)
