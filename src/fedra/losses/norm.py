"""Losses whose margin depends on the feature's norm, a measure of image quality: MagFace and AdaFace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedra.errors import ConfigError
from fedra.losses import LOSSES
from fedra.losses.angle import Overflow
from fedra.losses.angular_loss import AngularMargin, Cosines, NonNegative, Positive, Rate, ShiftedLoss, Tensors


@LOSSES.add("magface")
@dataclass(frozen=True, kw_only=True)
class MagFace(ShiftedLoss):
    """Angular margin that grows with the feature's norm (Meng et al. 2021, arXiv:2103.06627).

    logit_y = s cos(t_y + m(a)),  a = |x| clamped to [la, ua],  m(a) = lm + (um - lm)(a - la)/(ua - la)
    loss    = cross-entropy + lambda (a / ua^2 + 1 / a)

    The authors' code uses `overflow="easy"`. Norms outside [la, ua] get no gradient from m and lambda.

    Args:
        lower_norm: Norm la at which the margin is smallest.
        upper_norm: Norm ua at which the margin is largest.
        lower_margin: Smallest margin lm, in radians.
        upper_margin: Largest margin um, in radians.
        regularization: Weight lambda of the term that rewards large norms.
        overflow: What replaces the cosine where angle plus margin passes 180 degrees and would rise again: "thmm" a
            decreasing continuation, "easy" no margin above 90 degrees, "clamp" the constant -1, "none" nothing.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> MagFace(upper_norm=100.0)(features, weight, labels).shape
        torch.Size([])
    """

    lower_norm: Positive = 10.0
    upper_norm: Positive = 110.0
    lower_margin: AngularMargin = 0.45
    upper_margin: AngularMargin = 0.8
    regularization: NonNegative = 35.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lower_norm >= self.upper_norm or self.lower_margin > self.upper_margin:
            raise ConfigError(
                "lower_norm of MagFace must be below upper_norm and lower_margin at most upper_margin, got norms "
                f"{self.lower_norm} and {self.upper_norm}, margins {self.lower_margin} and {self.upper_margin}"
            )

    def magnitude(self, batch: Cosines) -> Tensor:
        """Return the norms (B,), clamped to [lower_norm, upper_norm]."""
        return batch.lengths.clamp(self.lower_norm, self.upper_norm)

    def curve(self, batch: Cosines) -> Tensor:
        growth = (self.upper_margin - self.lower_margin) / (self.upper_norm - self.lower_norm)
        return self.shift(batch, self.lower_margin + growth * (self.magnitude(batch) - self.lower_norm))

    def losses(self, batch: Cosines) -> Tensor:
        magnitude = self.magnitude(batch)
        return super().losses(batch) + self.regularization * (magnitude / self.upper_norm**2 + 1 / magnitude)


@LOSSES.add("adaface")
@dataclass(frozen=True, kw_only=True)
class AdaFace(ShiftedLoss):
    """Margin that changes from angular to additive as the feature's norm grows (Kim et al. 2022, arXiv:2204.00964).

    logit_y = s (cos(t_y - m z) - (m + m z)),  z = h (|x| - mean) / (std + 0.001) clamped to [-1, 1]

    State: `mean` and `std`, running statistics of the norms.

    Args:
        margin: Margin m.
        concentration: Factor h of the normalized norm.
        momentum: Weight of a batch in the running statistics.
        overflow: What replaces the cosine where angle plus margin passes 180 degrees and would rise again: "thmm" a
            decreasing continuation, "easy" no margin above 90 degrees, "clamp" the constant -1, "none" nothing.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = AdaFace()
        >>> losses, state = loss.step(features, weight, labels, loss.init_state(weight))
        >>> losses.shape, list(state)
        (torch.Size([8]), ['mean', 'std'])
    """

    margin: AngularMargin = 0.4
    concentration: Positive = 0.333
    momentum: Rate = 0.01
    overflow: Overflow = "clamp"

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        device = None if weight is None else weight.device
        return {"mean": torch.tensor(20.0, device=device), "std": torch.tensor(100.0, device=device)}

    def clamped_norms(self, batch: Cosines) -> Tensor:
        """Return the norms (B,) without gradient, clamped to a safe range."""
        return batch.lengths.detach().clamp(1e-3, 100.0)

    def advance(self, batch: Cosines) -> Mapping[str, Tensor]:
        mean, std = batch.statistic("mean"), batch.statistic("std")
        norms, is_real = self.clamped_norms(batch), batch.is_real
        count = is_real.sum()
        batch_mean = torch.where(is_real, norms, 0.0).sum() / count.clamp(min=1)
        squares = torch.where(is_real, (norms - batch_mean).square(), 0.0).sum()
        # One example has no standard deviation, an empty batch no mean either: the statistics stay as they are.
        batch_std = (squares / (count - 1).clamp(min=1)).sqrt()
        return {
            "mean": torch.where(count > 0, torch.lerp(mean, batch_mean.to(mean.dtype), self.momentum), mean),
            "std": torch.where(count > 1, torch.lerp(std, batch_std.to(std.dtype), self.momentum), std),
        }

    def curve(self, batch: Cosines) -> Tensor:
        deviation = (self.clamped_norms(batch) - batch.statistic("mean")) / (batch.statistic("std") + 1e-3)
        quality = (self.concentration * deviation).clamp(-1, 1)
        return self.shift(batch, -self.margin * quality) - self.margin * (1 + quality)
