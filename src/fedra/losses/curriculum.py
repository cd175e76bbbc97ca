"""Losses that follow the progress of training in an explicit state: SphereFace, CurricularFace, AdaCos."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedra.losses import LOSSES
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
    """Return a scalar tensor on the device of the class vectors."""
    return torch.tensor(value, device=None if weight is None else weight.device)


@LOSSES.add("sphereface")
@dataclass(frozen=True, kw_only=True)
class SphereFace(CurvedLoss):
    """Multiplicative angular margin on raw features, with annealing (Liu et al. 2017, arXiv:1704.08063).

    logit_y = s |x| (cos t_y + (psi(m t_y) - cos t_y) / (1 + lambda)),  logit_j = s |x| cos t_j
    lambda  = max(lambda_min, lambda_base (1 + lambda_decay step)^(-lambda_power))

    State: `step`, the number of steps taken. A federation must keep it, or every client starts again at lambda_base and
    the margin never takes effect. lambda_base = lambda_min = 0 disables the annealing.

    Args:
        scale: Scale s of the logits, in addition to the feature's norm.
        margin: Factor m of the angle.
        lambda_base: Initial lambda.
        lambda_decay: Decay of lambda per step.
        lambda_power: Exponent of the decay.
        lambda_min: Smallest lambda.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = SphereFace()
        >>> losses, state = loss.step(features, weight, labels, loss.init_state(weight))
        >>> float(state["step"])
        1.0
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

    def advance(self, batch: Cosines) -> Mapping[str, Tensor]:
        return {"step": batch.statistic("step") + batch.is_real.any()}

    def annealing(self, step: Tensor) -> Tensor:
        """Return the lambda of a step."""
        decayed = self.lambda_base * (1 + self.lambda_decay * step) ** -self.lambda_power
        return decayed.clamp(min=self.lambda_min)

    def curve(self, batch: Cosines) -> Tensor:
        psi = unfold(self.margin * angle(batch.true))
        return batch.true + (psi - batch.true) / (1 + self.annealing(batch.statistic("step")))

    def scaling(self, batch: Cosines) -> Tensor:
        return self.scale * batch.lengths[:, None]


@LOSSES.add("curricularface")
@dataclass(frozen=True, kw_only=True)
class CurricularFace(ShiftedLoss):
    """ArcFace with weights on hard negatives that grow during training (Huang et al. 2020, arXiv:2004.00288).

    logit_y = s cos(t_y + m),  logit_j = s c_j (t + c_j) where c_j > cos(t_y + m), otherwise s c_j

    State: `t`, the running mean of the true-class cosine.

    Args:
        margin: Angular margin m, in radians.
        momentum: Weight of a batch in the running mean.
        overflow: What replaces the cosine where angle plus margin passes 180 degrees and would rise again: "thmm" a
            decreasing continuation, "easy" no margin above 90 degrees, "clamp" the constant -1, "none" nothing.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = CurricularFace()
        >>> losses, state = loss.step(features, weight, labels, loss.init_state(weight))
        >>> losses.shape, list(state)
        (torch.Size([8]), ['t'])
    """

    margin: AngularMargin = 0.5
    momentum: Rate = 0.01

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        return {"t": scalar(0.0, weight)}

    def advance(self, batch: Cosines) -> Mapping[str, Tensor]:
        past, is_real = batch.statistic("t"), batch.is_real
        count = is_real.sum()
        mean = torch.where(is_real, batch.true, 0.0).sum() / count.clamp(min=1)
        return {"t": torch.where(count > 0, torch.lerp(past, mean.to(past.dtype), self.momentum), past)}

    def curve(self, batch: Cosines) -> Tensor:
        return self.shift(batch, self.margin)

    def other_classes(self, batch: Cosines) -> Tensor:
        hard = batch.values > add_angle(batch.true, self.margin, "none")[:, None]
        return torch.where(hard, batch.values * (batch.statistic("t") + batch.values), batch.values)


@LOSSES.add("adacos")
@dataclass(frozen=True, kw_only=True)
class AdaCos(AngularLoss):
    """Softmax on cosines with a scale set by the number of classes (Zhang et al. 2019, arXiv:1905.00292).

    logit_j = s cos t_j,  s = sqrt(2) ln(C - 1), at least `least_scale`

    Args:
        least_scale: Smallest scale.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> AdaCos()(features, weight, labels).shape
        torch.Size([])
    """

    least_scale: Positive = 1.0

    def fixed_scale(self, classes: int) -> float:
        """Return the scale for this number of classes."""
        return max(math.sqrt(2) * math.log(classes - 1) if classes > 2 else 0.0, self.least_scale)

    def scaling(self, batch: Cosines) -> Tensor | float:
        return self.fixed_scale(batch.values.shape[1])


@LOSSES.add("adacos-dynamic")
@dataclass(frozen=True, kw_only=True)
class DynamicAdaCos(AdaCos):
    """Softmax on cosines with a scale measured at every step (Zhang et al. 2019, arXiv:1905.00292).

    s = ln(B) / cos(min(pi/4, median t_y)),  B = mean_i sum_(j != y) exp(s_before cos t_ij)

    State: `scale`; 0 before the first step, which stands for the fixed scale of AdaCos.

    Args:
        least_scale: Smallest scale.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = DynamicAdaCos()
        >>> losses, state = loss.step(features, weight, labels, loss.init_state(weight))
        >>> losses.shape, list(state)
        (torch.Size([8]), ['scale'])
    """

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        return {"scale": scalar(0.0, weight)}

    def scaling(self, batch: Cosines) -> Tensor:
        past = batch.statistic("scale")
        return torch.where(past > 0, past, self.fixed_scale(batch.values.shape[1]))

    def advance(self, batch: Cosines) -> Mapping[str, Tensor]:
        before, is_real = self.scaling(batch), batch.is_real
        count = is_real.sum()
        others = is_real[:, None] & ~batch.is_true
        log_sum = torch.where(others, before * batch.values, -math.inf).flatten().logsumexp(0)
        angles = torch.where(is_real, angle(batch.true), math.inf).sort().values
        median = angles.gather(0, ((count - 1).clamp(min=0) // 2)[None])[0]
        scale = (log_sum - count.to(log_sum.dtype).log()) / median.clamp(max=math.pi / 4).cos()
        return {"scale": torch.where(count > 0, scale.clamp(min=self.least_scale), batch.statistic("scale"))}
