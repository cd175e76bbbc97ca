"""Losses whose margin depends on the angle or the class: CVM, adaptive margin, X2-Softmax, JAMsFace, AdaptiveFace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedra.errors import ConfigError
from fedra.losses import LOSSES
from fedra.losses.angle import add_angle, angle, straight_through
from fedra.losses.angular_loss import (
    AngularMargin,
    Cosines,
    CurvedLoss,
    NonNegative,
    Positive,
    ScaledLoss,
    ShiftedLoss,
    Tensors,
)

BISECTIONS = 60  # halves the bracket below the spacing of float64


@LOSSES.add("cvm")
@dataclass(frozen=True, kw_only=True)
class CVM(CurvedLoss):
    """Class-variant margins on the true-class and on the other cosines (Zhang et al. 2020, TNNLS.2020.3017528).

    logit_y = s (cos t_y - m1 sin^2 t_y),  logit_j = s (cos t_j + m2 cos^2 t_j)

    The true-class term leaves [-1, 1] only for m1 > 1/2, where cos t_y < 1 - 1/m1. The defaults are ours.

    Args:
        m1: Margin on the true class.
        m2: Margin on the other classes.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> CVM(m1=0.2)(features, weight, labels).shape
        torch.Size([])
    """

    m1: NonNegative = 0.3
    m2: NonNegative = 0.1

    def curve(self, batch: Cosines) -> Tensor:
        return batch.true - self.m1 * (1 - batch.true.square())

    def other_classes(self, batch: Cosines) -> Tensor:
        return batch.values + self.m2 * batch.values.square()


def turning_margin(m1: float, m2: float) -> float:
    """Return f(t*) = pi - t*, where t* is the only root of t + f(t) = pi; t + f(t) increases, because m1 < 1."""
    low, high = 0.0, math.pi
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if middle + m1 * math.sin(middle) ** 2 + m2 < math.pi else (low, middle)
    return math.pi - high


@LOSSES.add("adaptive-margin")
@dataclass(frozen=True, kw_only=True)
class AdaptiveMargin(ShiftedLoss):
    """Angular margin that is largest at 90 degrees (Han et al. 2026, eqs. 8-9).

    "An Improved Adaptive Angular Margin Loss Function for Deep Face Recognition":

    logit_y = s cos(t_y + f(t_y)),  f(t) = m1 sin^2 t + m2

    Beyond t*, where t* + f(t*) = pi, the cosine would rise again: `overflow` is ArcFace's, with the margin f(t*).

    Args:
        m1: Part of the margin that depends on the angle; 0 is ArcFace.
        m2: Constant part of the margin, in radians.
        overflow: What replaces the cosine where angle plus margin passes 180 degrees and would rise again: "thmm" a
            decreasing continuation, "easy" no margin above 90 degrees, "clamp" the constant -1, "none" nothing.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> AdaptiveMargin(m1=0.05, m2=0.4)(features, weight, labels).shape
        torch.Size([])
    """

    m1: Annotated[float, Field(ge=0, lt=1)] = 0.03
    m2: AngularMargin = 0.5

    def curve(self, batch: Cosines) -> Tensor:
        margin = self.m1 * (1 - batch.true.square()) + self.m2
        return add_angle(batch.true, margin, self.overflow, turning_margin(self.m1, self.m2))


@LOSSES.add("x2-softmax")
@dataclass(frozen=True, kw_only=True)
class X2Softmax(CurvedLoss):
    """The true-class cosine replaced by a parabola of the angle (Xu et al. 2023, arXiv:2312.05281).

    logit_y = s (a (t_y - h)^2 + k),  a < 0 and h <= 0, so it decreases everywhere

    Args:
        a: Curvature of the parabola.
        h: Angle of its vertex, in radians.
        k: Value at its vertex.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> X2Softmax(scale=32.0)(features, weight, labels).shape
        torch.Size([])
    """

    a: Annotated[float, Field(lt=0, allow_inf_nan=False)] = -0.9
    h: Annotated[float, Field(le=0, allow_inf_nan=False)] = 0.0
    k: Annotated[float, Field(allow_inf_nan=False)] = 0.65

    def curve(self, batch: Cosines) -> Tensor:
        return self.a * (angle(batch.true) - self.h).square() + self.k


@LOSSES.add("jamsface")
@dataclass(frozen=True, kw_only=True)
class JAMsFace(ShiftedLoss):
    """EXPERIMENTAL: angular and cosine margins learned for every class (after Khalifa and Al-Hamadi 2023).

    logit_y = s (cos(t_y + a_y) - c_y),  loss = cross-entropy - reward mean_j(a_j + c_j)

    doi 10.1007/s00521-023-08732-5; the details are our reading of the paper's summary. a_j and c_j are `largest` times
    the sigmoid of a trained number and are stored with the class vectors.

    Learned: `angular` and `cosine`, one number for every class.

    Args:
        angular: Initial angular margin, in radians; below `largest`.
        cosine: Initial cosine margin; below `largest`.
        largest: Upper bound of both margins.
        reward: Weight of the term that rewards large margins.
        overflow: What replaces the cosine where angle plus margin passes 180 degrees and would rise again: "thmm" a
            decreasing continuation, "easy" no margin above 90 degrees, "clamp" the constant -1, "none" nothing.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = JAMsFace()
        >>> loss(features, weight, labels, learned=loss.init_learned(weight)).shape
        torch.Size([])
    """

    angular: Positive = 0.3
    cosine: Positive = 0.2
    largest: AngularMargin = 0.8
    reward: NonNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.angular, self.cosine) >= self.largest:
            raise ConfigError(
                f"angular and cosine of JAMsFace must be below largest = {self.largest}, got {self.angular} and "
                f"{self.cosine}"
            )

    def init_learned(self, weight: Tensor) -> Tensors:
        starts = {"angular": self.angular, "cosine": self.cosine}
        return {
            name: weight.new_full((len(weight),), math.log(start / (self.largest - start)))
            for name, start in starts.items()
        }

    def margins(self, batch: Cosines, name: str) -> Tensor:
        """Return the learned margins (C,) of one kind, "angular" or "cosine"."""
        return self.largest * torch.sigmoid(batch.learned_parameter(name))

    def curve(self, batch: Cosines) -> Tensor:
        labels = batch.labels.clamp(min=0)
        shifted = self.shift(batch, self.margins(batch, "angular").gather(0, labels))
        return shifted - self.margins(batch, "cosine").gather(0, labels)

    def losses(self, batch: Cosines) -> Tensor:
        mean_margin = (self.margins(batch, "angular") + self.margins(batch, "cosine")).mean()
        return super().losses(batch) - self.reward * mean_margin


@LOSSES.add("adaptiveface")
@dataclass(frozen=True, kw_only=True)
class AdaptiveFace(ScaledLoss):
    """CosFace whose margin is learned for every class (Liu et al. 2019, CVPR, "AdaptiveFace").

    logit_y = s (cos t_y - m_y),  loss = cross-entropy - reward mean_j m_j

    Margins are used within 0 and 1, as FaceX-Zoo's implementation does; outside of it their gradient is that at the
    border, so they return. The paper's sampling of hard classes and of examples is not part of the loss.

    Learned: `margins`, one number for every class.

    Args:
        margin: Initial margin of every class.
        reward: Weight of the term that rewards large margins.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = AdaptiveFace()
        >>> loss(features, weight, labels, learned=loss.init_learned(weight)).shape
        torch.Size([])
    """

    margin: Annotated[float, Field(ge=0, le=1)] = 0.35
    reward: NonNegative = 70.0
    scale: Positive = 30.0

    def init_learned(self, weight: Tensor) -> Tensors:
        return {"margins": weight.new_full((len(weight),), self.margin)}

    def margins(self, batch: Cosines) -> Tensor:
        """Return the margins (C,) that are used."""
        learned = batch.learned_parameter("margins")
        return straight_through(learned, learned.clamp(0, 1))

    def true_class(self, batch: Cosines) -> Tensor:
        return batch.true - self.margins(batch).gather(0, batch.labels.clamp(min=0))

    def losses(self, batch: Cosines) -> Tensor:
        return super().losses(batch) - self.reward * self.margins(batch).mean()
