"""Losses with a constant margin or none: softmax, NormFace, CosFace, ArcFace, SphereFace-R, Combined."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

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


@dataclass(frozen=True, kw_only=True)
class Softmax(AngularLoss):
    """Plain softmax cross-entropy on inner products, without a bias.

    logit_j = W_j . x
    """

    def compare(self, features: Tensor, weight: Tensor) -> Tensor:
        dtype = working_dtype(features, weight)
        return F.linear(features.to(dtype), weight.to(dtype)).to(dtype)


@dataclass(frozen=True, kw_only=True)
class NormalizedSoftmax(ScaledLoss):
    """Softmax on cosines, no margin (NormFace, Wang et al. 2017, arXiv:1704.06369).

    logit_j = s cos t_j
    """


@dataclass(frozen=True, kw_only=True)
class CosFace(ScaledLoss):
    """Additive cosine margin (Wang et al. 2018, arXiv:1801.09414; AM-softmax, arXiv:1801.05599).

    logit_y = s (cos t_y - m)
    """

    margin: NonNegative = 0.35

    def true_class(self, seen: Cosines) -> Tensor:
        return seen.true - self.margin


@dataclass(frozen=True, kw_only=True)
class ArcFace(ShiftedLoss):
    """Additive angular margin (Deng et al. 2019, arXiv:1801.07698).

    logit_y = s cos(t_y + m)
    """

    margin: AngularMargin = 0.5

    def curve(self, seen: Cosines) -> Tensor:
        return self.shift(seen, self.margin)


@dataclass(frozen=True, kw_only=True)
class SphereFaceR(CurvedLoss):
    """Multiplicative angular margin on unit features, any real m (Liu et al. 2022, arXiv:2109.05565).

    logit_y = s psi(m t_y),  psi(a) = (-1)^k cos a - 2k,  k = floor(a / pi)

    The authors detach the margin's gradient, hence the default `grad_mode`.
    """

    scale: Positive = 30.0
    margin: Multiplier = 1.7
    grad_mode: GradMode = "straight-through"

    def curve(self, seen: Cosines) -> Tensor:
        return unfold(self.margin * angle(seen.true))


@dataclass(frozen=True, kw_only=True)
class Combined(ShiftedLoss):
    """All three margins at once (Deng et al. 2019, arXiv:1801.07698).

    logit_y = s (cos(m1 t_y + m2) - m3)

    (1, 0, 0) is NormalizedSoftmax, (1, m, 0) ArcFace, (1, 0, m) CosFace. Beyond 180 degrees `overflow="thmm"`
    is ArcFace's rule for m1 = 1 and SphereFace's psi for any other m1, where th/mm would not be monotone.
    """

    m1: Positive = 1.0
    m2: AngularMargin = 0.3
    m3: NonNegative = 0.2

    def curve(self, seen: Cosines) -> Tensor:
        bent = self.shift(seen, self.m2) if self.m1 == 1 else self._stretch(seen.true)
        return bent - self.m3

    def _stretch(self, cosine: Tensor) -> Tensor:
        stretched = self.m1 * angle(cosine) + self.m2
        if self.overflow == "thmm":
            return unfold(stretched)
        if self.overflow == "easy":
            return torch.where(cosine > 0, stretched.cos(), cosine)
        return stretched.clamp(max=math.pi).cos() if self.overflow == "clamp" else stretched.cos()
