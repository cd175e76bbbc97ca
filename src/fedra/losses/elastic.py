"""ElasticFace: margins drawn from a normal distribution for every example and step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedra.losses import LOSSES
from fedra.losses.angular_loss import AngularMargin, Cosines, NonNegative, ScaledLoss, ShiftedLoss, Tensors

Spread = Annotated[float, Field(ge=0, le=0.5)]
Assignment = Literal["drawn", "sorted", "published"]


def standard_normal(examples: int, generator: torch.Generator | None, dtype: torch.dtype) -> Tensors:
    """Draw one number from N(0, 1) for each example, on the generator's device."""
    device = None if generator is None else generator.device
    return {"noise": torch.randn(examples, generator=generator, device=device, dtype=dtype)}


def random_margins(batch: Cosines, mean: float, sigma: float, assignment: Assignment) -> Tensor:
    """Return margins e_i ~ N(mean, sigma^2), one for each example; padding gets the mean and is not sorted.

    drawn      in the order of drawing
    sorted     the smallest margin to the example nearest its class center, as the paper describes its "+" variants
    published  as the authors' code computes "+": by the inverse of that order
    """
    margins = mean + sigma * batch.drawn["noise"].to(batch.true)
    if assignment == "drawn":
        return margins
    is_real = batch.is_real
    nearest_first = torch.where(is_real, batch.true.detach(), -math.inf).argsort(descending=True, stable=True)
    rank = nearest_first.argsort() if assignment == "sorted" else nearest_first
    ordered = torch.where(is_real, margins, math.inf).sort().values.gather(0, rank)
    return torch.where(is_real, ordered, mean)


@LOSSES.add("elastic-arcface")
@dataclass(frozen=True, kw_only=True)
class ElasticArcFace(ShiftedLoss):
    """Random angular margin (ElasticFace-Arc, Boutros et al. 2022, arXiv:2109.09416).

    logit_y = s cos(t_y + e),  e ~ N(m, sigma^2) for every example

    Args:
        margin: Mean m of the margin, in radians.
        sigma: Standard deviation of the margin; 0 is ArcFace.
        assignment: Which example gets which margin: "drawn" at random, "sorted" the smallest to the example nearest its
            class center, "published" by the inverse of that order, as in the authors' code.
        overflow: What replaces the cosine where angle plus margin passes 180 degrees and would rise again: "thmm" a
            decreasing continuation, "easy" no margin above 90 degrees, "clamp" the constant -1, "none" nothing.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> ElasticArcFace()(features, weight, labels, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([])
    """

    margin: AngularMargin = 0.5
    sigma: Spread = 0.05
    assignment: Assignment = "drawn"

    def draw(
        self, examples: int, generator: torch.Generator | None, dtype: torch.dtype = torch.float32
    ) -> Mapping[str, Tensor]:
        return standard_normal(examples, generator, dtype)

    def curve(self, batch: Cosines) -> Tensor:
        return self.shift(batch, random_margins(batch, self.margin, self.sigma, self.assignment))


@LOSSES.add("elastic-arcface-plus")
@dataclass(frozen=True, kw_only=True)
class ElasticArcFacePlus(ElasticArcFace):
    """Random angular margin, larger for examples far from their class center (ElasticFace-Arc+, arXiv:2109.09416).

    The margins of a batch are sorted: the nearest example gets the smallest.

    Args:
        margin: Mean of the margin, in radians.
        sigma: Standard deviation of the margin; 0 is ArcFace.
        assignment: Which example gets which margin: "sorted" (the default) the smallest to the example nearest its
            class center, "published" by the inverse of that order, as in the authors' code, "drawn" at random.
        overflow: What replaces the cosine where angle plus margin passes 180 degrees and would rise again: "thmm" a
            decreasing continuation, "easy" no margin above 90 degrees, "clamp" the constant -1, "none" nothing.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> ElasticArcFacePlus(sigma=0.02)(features, weight, labels).shape
        torch.Size([])
    """

    sigma: Spread = 0.0175
    assignment: Assignment = "sorted"


@LOSSES.add("elastic-cosface")
@dataclass(frozen=True, kw_only=True)
class ElasticCosFace(ScaledLoss):
    """Random cosine margin (ElasticFace-Cos, Boutros et al. 2022, arXiv:2109.09416).

    logit_y = s (cos t_y - e),  e ~ N(m, sigma^2) for every example

    Args:
        margin: Mean m of the margin.
        sigma: Standard deviation of the margin; 0 is CosFace.
        assignment: Which example gets which margin: "drawn" at random, "sorted" the smallest to the example nearest its
            class center, "published" by the inverse of that order, as in the authors' code.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> ElasticCosFace()(features, weight, labels, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([])
    """

    margin: NonNegative = 0.35
    sigma: Spread = 0.05
    assignment: Assignment = "drawn"

    def draw(
        self, examples: int, generator: torch.Generator | None, dtype: torch.dtype = torch.float32
    ) -> Mapping[str, Tensor]:
        return standard_normal(examples, generator, dtype)

    def true_class(self, batch: Cosines) -> Tensor:
        return batch.true - random_margins(batch, self.margin, self.sigma, self.assignment)


@LOSSES.add("elastic-cosface-plus")
@dataclass(frozen=True, kw_only=True)
class ElasticCosFacePlus(ElasticCosFace):
    """Random cosine margin, larger for examples far from their class center (ElasticFace-Cos+, arXiv:2109.09416).

    The margins of a batch are sorted: the nearest example gets the smallest.

    Args:
        margin: Mean of the margin.
        sigma: Standard deviation of the margin; 0 is CosFace.
        assignment: Which example gets which margin: "sorted" (the default) the smallest to the example nearest its
            class center, "published" by the inverse of that order, as in the authors' code, "drawn" at random.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> ElasticCosFacePlus(sigma=0.01)(features, weight, labels).shape
        torch.Size([])
    """

    sigma: Spread = 0.02
    assignment: Assignment = "sorted"
