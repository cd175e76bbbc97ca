"""ElasticFace: margins drawn from a normal distribution, afresh for every example and step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedra.losses.angular_loss import AngularMargin, Cosines, NonNegative, ScaledLoss, ShiftedLoss, Tensors

Spread = Annotated[float, Field(ge=0, le=0.5)]
Assignment = Literal["drawn", "sorted", "published"]


def standard_normal(examples: int, generator: torch.Generator | None, dtype: torch.dtype) -> Tensors:
    """One number of N(0, 1) for each example, on the generator's device."""
    device = None if generator is None else generator.device
    return {"noise": torch.randn(examples, generator=generator, device=device, dtype=dtype)}


def drawn_margins(seen: Cosines, mean: float, sigma: float, assignment: Assignment) -> Tensor:
    """Margins e_i ~ N(mean, sigma^2), one for each example; padding has the mean and takes no place in an order.

    drawn      as they come
    sorted     the smallest margin to the example nearest its class center, as the paper means its "+" forms
    published  what the authors' code does for "+": it applies the inverse of that order
    """
    margins = mean + sigma * seen.drawn["noise"].to(seen.true)
    if assignment == "drawn":
        return margins
    real = seen.real
    nearest_first = torch.where(real, seen.true.detach(), -math.inf).argsort(descending=True, stable=True)
    rank = nearest_first.argsort() if assignment == "sorted" else nearest_first
    ordered = torch.where(real, margins, math.inf).sort().values.gather(0, rank)
    return torch.where(real, ordered, mean)


@dataclass(frozen=True, kw_only=True)
class ElasticArcFace(ShiftedLoss):
    """Random angular margin (ElasticFace-Arc, Boutros et al. 2022, arXiv:2109.09416).

    logit_y = s cos(t_y + e),  e ~ N(m, sigma^2) afresh for every example
    """

    margin: AngularMargin = 0.5
    sigma: Spread = 0.05
    assignment: Assignment = "drawn"

    def draw(
        self, examples: int, generator: torch.Generator | None, dtype: torch.dtype = torch.float32
    ) -> Mapping[str, Tensor]:
        return standard_normal(examples, generator, dtype)

    def curve(self, seen: Cosines) -> Tensor:
        return self.shift(seen, drawn_margins(seen, self.margin, self.sigma, self.assignment))


@dataclass(frozen=True, kw_only=True)
class ElasticArcFacePlus(ElasticArcFace):
    """Random angular margin, larger for examples far from their center (ElasticFace-Arc+, arXiv:2109.09416).

    The margins of a batch are sorted: the nearest example gets the smallest.
    """

    sigma: Spread = 0.0175
    assignment: Assignment = "sorted"


@dataclass(frozen=True, kw_only=True)
class ElasticCosFace(ScaledLoss):
    """Random cosine margin (ElasticFace-Cos, Boutros et al. 2022, arXiv:2109.09416).

    logit_y = s (cos t_y - e),  e ~ N(m, sigma^2) afresh for every example
    """

    margin: NonNegative = 0.35
    sigma: Spread = 0.05
    assignment: Assignment = "drawn"

    def draw(
        self, examples: int, generator: torch.Generator | None, dtype: torch.dtype = torch.float32
    ) -> Mapping[str, Tensor]:
        return standard_normal(examples, generator, dtype)

    def true_class(self, seen: Cosines) -> Tensor:
        return seen.true - drawn_margins(seen, self.margin, self.sigma, self.assignment)


@dataclass(frozen=True, kw_only=True)
class ElasticCosFacePlus(ElasticCosFace):
    """Random cosine margin, larger for examples far from their center (ElasticFace-Cos+, arXiv:2109.09416).

    The margins of a batch are sorted: the nearest example gets the smallest.
    """

    sigma: Spread = 0.02
    assignment: Assignment = "sorted"
