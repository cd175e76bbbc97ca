"""Losses whose margin follows the length of the feature, a measure of image quality: MagFace and AdaFace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedra.errors import ConfigError
from fedra.losses.angle import Overflow
from fedra.losses.angular_loss import AngularMargin, Cosines, NonNegative, Positive, Rate, ShiftedLoss, Tensors


@dataclass(frozen=True, kw_only=True)
class MagFace(ShiftedLoss):
    """Angular margin that grows with the feature's length (Meng et al. 2021, arXiv:2103.06627).

    logit_y = s cos(t_y + m(a)),  a = |x| clamped to [la, ua],  m(a) = lm + (um - lm)(a - la)/(ua - la)
    loss    = cross-entropy + lambda (a / ua^2 + 1 / a)

    The authors' code uses `overflow="easy"`. Lengths outside [la, ua] get no gradient from m and lambda.
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
                f"MagFace needs lower_norm < upper_norm, not {self.lower_norm} and {self.upper_norm}, "
                f"and lower_margin <= upper_margin, not {self.lower_margin} and {self.upper_margin}"
            )

    def magnitude(self, seen: Cosines) -> Tensor:
        return seen.lengths.clamp(self.lower_norm, self.upper_norm)

    def curve(self, seen: Cosines) -> Tensor:
        slope = (self.upper_margin - self.lower_margin) / (self.upper_norm - self.lower_norm)
        return self.shift(seen, self.lower_margin + slope * (self.magnitude(seen) - self.lower_norm))

    def losses(self, seen: Cosines) -> Tensor:
        magnitude = self.magnitude(seen)
        return super().losses(seen) + self.regularization * (magnitude / self.upper_norm**2 + 1 / magnitude)


@dataclass(frozen=True, kw_only=True)
class AdaFace(ShiftedLoss):
    """Margin that turns from angular to additive as the feature grows (Kim et al. 2022, arXiv:2204.00964).

    logit_y = s (cos(t_y - m z) - (m + m z)),  z = h (|x| - mean) / (std + 0.001) clamped to [-1, 1]

    State: `mean` and `std`, running statistics of the batch's lengths.
    """

    margin: AngularMargin = 0.4
    concentration: Positive = 0.333
    momentum: Rate = 0.01
    overflow: Overflow = "clamp"

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        device = None if weight is None else weight.device
        return {"mean": torch.tensor(20.0, device=device), "std": torch.tensor(100.0, device=device)}

    def safe_lengths(self, seen: Cosines) -> Tensor:
        return seen.lengths.detach().clamp(1e-3, 100.0)

    def advance(self, seen: Cosines) -> Mapping[str, Tensor]:
        mean, std = seen.kept("mean"), seen.kept("std")
        lengths, real = self.safe_lengths(seen), seen.real
        count = real.sum()
        batch_mean = torch.where(real, lengths, 0.0).sum() / count.clamp(min=1)
        spread = torch.where(real, (lengths - batch_mean).square(), 0.0).sum()
        # One example has a mean but no spread, an empty batch has neither: keep what was known.
        batch_std = (spread / (count - 1).clamp(min=1)).sqrt()
        return {
            "mean": torch.where(count > 0, torch.lerp(mean, batch_mean.to(mean.dtype), self.momentum), mean),
            "std": torch.where(count > 1, torch.lerp(std, batch_std.to(std.dtype), self.momentum), std),
        }

    def curve(self, seen: Cosines) -> Tensor:
        deviation = (self.safe_lengths(seen) - seen.kept("mean")) / (seen.kept("std") + 1e-3)
        quality = (self.concentration * deviation).clamp(-1, 1)
        return self.shift(seen, -self.margin * quality) - self.margin * (1 + quality)
