"""Losses that follow the progress of training in an explicit state: SphereFace, CurricularFace, AdaCos."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedra.losses.angle import add_angle, angle, unfold
from fedra.losses.angular_loss import (
    AngularLoss,
    AngularMargin,
    Cosines,
    CurvedLoss,
    NonNegative,
    Positive,
    Rate,
    ShiftedLoss,
    Tensors,
)
from fedra.losses.fixed import Multiplier


def scalar(value: float, weight: Tensor | None) -> Tensor:
    """One number on the device of the class weights."""
    return torch.tensor(value, device=None if weight is None else weight.device)


@dataclass(frozen=True, kw_only=True)
class SphereFace(CurvedLoss):
    """Multiplicative angular margin on raw features, with annealing (Liu et al. 2017, arXiv:1704.08063).

    logit_y = s |x| (cos t_y + (psi(m t_y) - cos t_y) / (1 + lambda)),  logit_j = s |x| cos t_j
    lambda  = max(lambda_min, lambda_base (1 + lambda_decay step)^(-lambda_power))

    State: `step`, the number of steps taken. A federation must keep it, or every client starts again at
    lambda_base and the margin never appears. lambda_base = lambda_min = 0 switches the annealing off.
    """

    counters: ClassVar[tuple[str, ...]] = ("step",)

    scale: Positive = 1.0
    margin: Multiplier = 4.0
    lambda_base: NonNegative = 1000.0
    lambda_decay: NonNegative = 0.12
    lambda_power: NonNegative = 1.0
    lambda_min: NonNegative = 5.0

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        return {"step": scalar(0.0, weight)}

    def advance(self, seen: Cosines) -> Mapping[str, Tensor]:
        return {"step": seen.kept("step") + seen.real.any()}

    def annealing(self, step: Tensor) -> Tensor:
        """The lambda of a step."""
        decayed = self.lambda_base * (1 + self.lambda_decay * step) ** -self.lambda_power
        return decayed.clamp(min=self.lambda_min)

    def curve(self, seen: Cosines) -> Tensor:
        psi = unfold(self.margin * angle(seen.true))
        return seen.true + (psi - seen.true) / (1 + self.annealing(seen.kept("step")))

    def scaling(self, seen: Cosines) -> Tensor:
        return self.scale * seen.lengths[:, None]


@dataclass(frozen=True, kw_only=True)
class CurricularFace(ShiftedLoss):
    """ArcFace that weighs hard negatives more as training goes on (Huang et al. 2020, arXiv:2004.00288).

    logit_y = s cos(t_y + m),  logit_j = s c_j (t + c_j) where c_j > cos(t_y + m), otherwise s c_j

    State: `t`, the running mean of the true-class cosine.
    """

    margin: AngularMargin = 0.5
    momentum: Rate = 0.01

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        return {"t": scalar(0.0, weight)}

    def advance(self, seen: Cosines) -> Mapping[str, Tensor]:
        kept, real = seen.kept("t"), seen.real
        count = real.sum()
        mean = torch.where(real, seen.true, 0.0).sum() / count.clamp(min=1)
        return {"t": torch.where(count > 0, torch.lerp(kept, mean.to(kept.dtype), self.momentum), kept)}

    def curve(self, seen: Cosines) -> Tensor:
        return self.shift(seen, self.margin)

    def other_classes(self, seen: Cosines) -> Tensor:
        hard = seen.values > add_angle(seen.true, self.margin, "none")[:, None]
        return torch.where(hard, seen.values * (seen.kept("t") + seen.values), seen.values)


@dataclass(frozen=True, kw_only=True)
class AdaCos(AngularLoss):
    """Softmax on cosines, its scale set by the number of classes (Zhang et al. 2019, arXiv:1905.00292).

    logit_j = s cos t_j,  s = sqrt(2) ln(C - 1), at least `least_scale`
    """

    least_scale: Positive = 1.0

    def fixed_scale(self, classes: int) -> float:
        return max(math.sqrt(2) * math.log(classes - 1) if classes > 2 else 0.0, self.least_scale)

    def scaling(self, seen: Cosines) -> Tensor | float:
        return self.fixed_scale(seen.values.shape[1])


@dataclass(frozen=True, kw_only=True)
class DynamicAdaCos(AdaCos):
    """Softmax on cosines, its scale measured at every step (Zhang et al. 2019, arXiv:1905.00292).

    s = ln(B) / cos(min(pi/4, median t_y)),  B = mean_i sum_(j != y) exp(s_before cos t_ij)

    State: `scale`; 0 before the first step, which stands for AdaCos's fixed scale.
    """

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        return {"scale": scalar(0.0, weight)}

    def scaling(self, seen: Cosines) -> Tensor:
        kept = seen.kept("scale")
        return torch.where(kept > 0, kept, self.fixed_scale(seen.values.shape[1]))

    def advance(self, seen: Cosines) -> Mapping[str, Tensor]:
        before, real = self.scaling(seen), seen.real
        count = real.sum()
        rivals = real[:, None] & ~seen.is_true
        log_sum = torch.where(rivals, before * seen.values, -math.inf).flatten().logsumexp(0)
        angles = torch.where(real, angle(seen.true), math.inf).sort().values
        median = angles.gather(0, ((count - 1).clamp(min=0) // 2)[None])[0]
        scale = (log_sum - count.to(log_sum.dtype).log()) / median.clamp(max=math.pi / 4).cos()
        return {"scale": torch.where(count > 0, scale.clamp(min=self.least_scale), seen.kept("scale"))}
