"""Losses whose margin follows the angle or the class: CVM, the adaptive margin, X2-Softmax, JAMsFace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedra.errors import ConfigError
from fedra.losses.angle import add_angle, angle
from fedra.losses.angular_loss import (
    AngularMargin,
    Cosines,
    CurvedLoss,
    NonNegative,
    Positive,
    ShiftedLoss,
    Tensors,
)

BISECTIONS = 60  # halves the bracket below the spacing of float64


@dataclass(frozen=True, kw_only=True)
class CVM(CurvedLoss):
    """Class-variant margins on the true and on the false cosines (Zhang et al. 2020, TNNLS.2020.3017528).

    logit_y = s (cos t_y - m1 sin^2 t_y),  logit_j = s (cos t_j + m2 cos^2 t_j)

    The true-class term leaves [-1, 1] only for m1 > 1/2, where cos t_y < 1 - 1/m1. The defaults are ours.
    """

    m1: NonNegative = 0.3
    m2: NonNegative = 0.1

    def curve(self, seen: Cosines) -> Tensor:
        return seen.true - self.m1 * (1 - seen.true.square())

    def other_classes(self, seen: Cosines) -> Tensor:
        return seen.values + self.m2 * seen.values.square()


def turning_margin(m1: float, m2: float) -> float:
    """f(t*) = pi - t*, with t* the only root of t + f(t) = pi: t + f(t) rises everywhere, since m1 < 1."""
    low, high = 0.0, math.pi
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if middle + m1 * math.sin(middle) ** 2 + m2 < math.pi else (low, middle)
    return math.pi - high


@dataclass(frozen=True, kw_only=True)
class AdaptiveMargin(ShiftedLoss):
    """Angular margin that is largest at 90 degrees (Han et al. 2026, eqs. 8-9).

    "An Improved Adaptive Angular Margin Loss Function for Deep Face Recognition":

    logit_y = s cos(t_y + f(t_y)),  f(t) = m1 sin^2 t + m2

    m1 = 0 is ArcFace. Beyond t*, where t* + f(t*) = pi, the cosine would rise again: `overflow` is ArcFace's,
    with the margin f(t*).
    """

    m1: Annotated[float, Field(ge=0, lt=1)] = 0.03
    m2: AngularMargin = 0.5

    def curve(self, seen: Cosines) -> Tensor:
        margin = self.m1 * (1 - seen.true.square()) + self.m2
        return add_angle(seen.true, margin, self.overflow, turning_margin(self.m1, self.m2))


@dataclass(frozen=True, kw_only=True)
class X2Softmax(CurvedLoss):
    """The true-class cosine replaced by a parabola of the angle (Xu et al. 2023, arXiv:2312.05281).

    logit_y = s (a (t_y - h)^2 + k),  a < 0 and h <= 0, so that it falls everywhere
    """

    a: Annotated[float, Field(lt=0, allow_inf_nan=False)] = -0.9
    h: Annotated[float, Field(le=0, allow_inf_nan=False)] = 0.0
    k: Annotated[float, Field(allow_inf_nan=False)] = 0.65

    def curve(self, seen: Cosines) -> Tensor:
        return self.a * (angle(seen.true) - self.h).square() + self.k


@dataclass(frozen=True, kw_only=True)
class JAMsFace(ShiftedLoss):
    """EXPERIMENTAL: angular and cosine margins learned for every class (after Khalifa and Al-Hamadi 2023).

    logit_y = s (cos(t_y + a_y) - c_y),  loss = cross-entropy - reward mean_j(a_j + c_j)

    doi 10.1007/s00521-023-08732-5; the details are our reading of the paper's summary. a_j and c_j are
    `largest` times a sigmoid of a trained number, start at `angular` and `cosine`, and belong with the class
    weights.

    Learned: `angular` and `cosine`, one number for every class.
    """

    angular: Positive = 0.3
    cosine: Positive = 0.2
    largest: AngularMargin = 0.8
    reward: NonNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.angular, self.cosine) >= self.largest:
            raise ConfigError(
                f"JAMsFace starts with margins {self.angular} and {self.cosine}, which must be below "
                f"largest={self.largest}"
            )

    def init_learned(self, weight: Tensor) -> Tensors:
        starts = {"angular": self.angular, "cosine": self.cosine}
        return {
            name: weight.new_full((len(weight),), math.log(start / (self.largest - start)))
            for name, start in starts.items()
        }

    def margins(self, seen: Cosines, name: str) -> Tensor:
        return self.largest * torch.sigmoid(seen.trained(name))

    def curve(self, seen: Cosines) -> Tensor:
        own = seen.labels.clamp(min=0)
        shifted = self.shift(seen, self.margins(seen, "angular").gather(0, own))
        return shifted - self.margins(seen, "cosine").gather(0, own)

    def losses(self, seen: Cosines) -> Tensor:
        gained = (self.margins(seen, "angular") + self.margins(seen, "cosine")).mean()
        return super().losses(seen) - self.reward * gained
