"""Losses with a constant margin or none: softmax, NormFace, CosFace, ArcFace, SphereFace-R, Combined."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedra.losses import LOSSES
from fedra.losses.angle import angle, unfold, working_dtype
from fedra.losses.angular_loss import (
    AngularLoss,
    AngularMargin,
    Cosines,
    CurvedLoss,
    GradMode,
    NonNegative,
    Positive,
    ScaledLoss,
    ShiftedLoss,
)

Multiplier = Annotated[float, Field(ge=1, le=8)]


@LOSSES.add("softmax")
@dataclass(frozen=True, kw_only=True)
class Softmax(AngularLoss):
    """Plain softmax cross-entropy on inner products, without a bias.

    logit_j = W_j . x

    Args:
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> Softmax()(features, weight, labels).shape
        torch.Size([])
    """

    def compare(self, features: Tensor, weight: Tensor) -> Tensor:
        dtype = working_dtype(features, weight)
        return F.linear(features.to(dtype), weight.to(dtype)).to(dtype)


@LOSSES.add("normalized-softmax")
@dataclass(frozen=True, kw_only=True)
class NormalizedSoftmax(ScaledLoss):
    """Softmax on cosines without a margin (NormFace, Wang et al. 2017, arXiv:1704.06369).

    logit_j = s cos t_j

    Args:
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> NormalizedSoftmax(scale=16.0)(features, weight, labels).shape
        torch.Size([])
    """


@LOSSES.add("cosface")
@dataclass(frozen=True, kw_only=True)
class CosFace(ScaledLoss):
    """Additive cosine margin (Wang et al. 2018, arXiv:1801.09414; AM-softmax, arXiv:1801.05599).

    logit_y = s (cos t_y - m)

    Args:
        margin: Margin m on the cosine; 0 is NormalizedSoftmax.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> CosFace(scale=64.0, margin=0.4)(features, weight, labels).shape
        torch.Size([])
    """

    margin: NonNegative = 0.35

    def true_class(self, batch: Cosines) -> Tensor:
        return batch.true - self.margin


@LOSSES.add("arcface")
@dataclass(frozen=True, kw_only=True)
class ArcFace(ShiftedLoss):
    """Additive angular margin (Deng et al. 2019, arXiv:1801.07698).

    logit_y = s cos(t_y + m)

    Args:
        margin: Margin m on the angle, in radians; 0 is NormalizedSoftmax.
        overflow: What replaces the cosine where angle plus margin passes 180 degrees and would rise again: "thmm" a
            decreasing continuation, "easy" no margin above 90 degrees, "clamp" the constant -1, "none" nothing.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> ArcFace(scale=64.0, margin=0.5)(features, weight, labels).shape
        torch.Size([])
    """

    margin: AngularMargin = 0.5

    def curve(self, batch: Cosines) -> Tensor:
        return self.shift(batch, self.margin)


@LOSSES.add("sphereface-r")
@dataclass(frozen=True, kw_only=True)
class SphereFaceR(CurvedLoss):
    """Multiplicative angular margin on unit features, for any real m (Liu et al. 2022, arXiv:2109.05565).

    logit_y = s psi(m t_y),  psi(a) = (-1)^k cos a - 2k,  k = floor(a / pi)

    Args:
        scale: Scale s of the logits.
        margin: Factor m of the angle; 1 is NormalizedSoftmax.
        grad_mode: "straight-through" (the default, as the authors do) uses the value of psi with the gradient of the
            plain cosine; "exact" differentiates psi.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> SphereFaceR(margin=1.5)(features, weight, labels).shape
        torch.Size([])
    """

    scale: Positive = 30.0
    margin: Multiplier = 1.7
    grad_mode: GradMode = "straight-through"

    def curve(self, batch: Cosines) -> Tensor:
        return unfold(self.margin * angle(batch.true))


@LOSSES.add("combined")
@dataclass(frozen=True, kw_only=True)
class Combined(ShiftedLoss):
    """The multiplicative, the angular and the cosine margin together (Deng et al. 2019, arXiv:1801.07698).

    logit_y = s (cos(m1 t_y + m2) - m3)

    (1, 0, 0) is NormalizedSoftmax, (1, m, 0) ArcFace, (1, 0, m) CosFace. Beyond 180 degrees `overflow="thmm"` is
    ArcFace's rule for m1 = 1 and SphereFace's psi for any other m1, where ArcFace's would not be monotone.

    Args:
        m1: Factor of the angle.
        m2: Margin on the angle, in radians.
        m3: Margin on the cosine.
        overflow: What replaces the cosine where angle plus margin passes 180 degrees and would rise again: "thmm" a
            decreasing continuation, "easy" no margin above 90 degrees, "clamp" the constant -1, "none" nothing.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> Combined(m1=1.0, m2=0.3, m3=0.2)(features, weight, labels).shape
        torch.Size([])
    """

    m1: Positive = 1.0
    m2: AngularMargin = 0.3
    m3: NonNegative = 0.2

    def curve(self, batch: Cosines) -> Tensor:
        shifted = self.shift(batch, self.m2) if self.m1 == 1 else self._stretch(batch.true)
        return shifted - self.m3

    def _stretch(self, cosine: Tensor) -> Tensor:
        stretched = self.m1 * angle(cosine) + self.m2
        if self.overflow == "thmm":
            return unfold(stretched)
        if self.overflow == "easy":
            return torch.where(cosine > 0, stretched.cos(), cosine)
        return stretched.clamp(max=math.pi).cos() if self.overflow == "clamp" else stretched.cos()
