"""Objectives whose gradients are known by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedra.core.algorithm import Algorithm
from fedra.core.model import Output
from fedra.core.part import Term
from fedra.core.tree import Params
from fedra.core.view import View


@dataclass(frozen=True)
class ToyQuadratic(Term):
    """A bowl in the head's weights: its center and its curvatures."""

    center: float = 0.0
    stretch: float = 1.0
    formula: ClassVar[str] = "1/2 sum_j h_j (w_j - center)^2"

    def curvature(self, weight: Tensor) -> Tensor:
        return self.stretch * torch.linspace(0.5, 2.0, weight.numel(), dtype=weight.dtype).view_as(weight)

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        weight = params["head.weight"]
        return 0.5 * (self.curvature(weight) * (weight - self.center).square()).sum()

    def slope(self, weight: Tensor) -> Tensor:
        return self.curvature(weight) * (weight - self.center)


@dataclass(frozen=True)
class ToyPull(ToyQuadratic):
    """Another bowl, to stand for the proximal term."""

    center: float = 1.0
    stretch: float = 0.3


@dataclass(frozen=True)
class ToyLinear(Term):
    """A constant gradient in every parameter."""

    slope: float = 1.0
    formula: ClassVar[str] = "slope * sum_j w_j"

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return self.slope * sum((value.sum() for value in params.values()), torch.zeros((), dtype=torch.float64))


def on(objective: Term, algorithm: Algorithm) -> Algorithm:
    """The algorithm with this term in the place of cross-entropy."""
    return replace(algorithm, objective=(objective, *algorithm.objective[1:]))
