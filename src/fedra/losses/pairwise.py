"""Losses that judge every (feature, class) pair for itself: CircleLoss, SphereFace2, UniFace, UniTSFace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedra.errors import ConfigError
from fedra.losses.angle import cosine, straight_through
from fedra.losses.angular_loss import Cosines, GradMode, NonNegative, Positive, ScaledLoss, Tensors

Share = Annotated[float, Field(gt=0, lt=1)]


def binary_losses(logits: Tensor, is_true: Tensor, positive: float = 1.0, negative: float = 1.0) -> Tensor:
    """(B,): softplus(-z) at the true class plus softplus(z) at every other, each with its weight."""
    return torch.where(is_true, positive * F.softplus(-logits), negative * F.softplus(logits)).sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class CircleLoss(ScaledLoss):
    """Similarities weighted by their distance from an optimum (Sun et al. 2020, arXiv:2002.10857).

    logit_y = s [1 + m - c_y]+ (c_y - (1 - m)),  logit_j = s [c_j + m]+ (c_j - m),  brackets without gradient
    """

    scale: Positive = 256.0
    margin: NonNegative = 0.25

    def true_class(self, seen: Cosines) -> Tensor:
        pace = (1 + self.margin - seen.true).detach().relu()
        return pace * (seen.true - (1 - self.margin))

    def other_classes(self, seen: Cosines) -> Tensor:
        pace = (seen.values + self.margin).detach().relu()
        return pace * (seen.values - self.margin)


@dataclass(frozen=True, kw_only=True)
class SphereFace2(ScaledLoss):
    """A binary classifier for every class (Wen et al. 2022, arXiv:2108.01513, the additive form C).

    z_y = r (g(c_y) - m) + b,  z_j = r (g(c_j) + m) + b,  g(c) = 2 ((c + 1) / 2)^t - 1
    loss = (w / r) (alpha softplus(-z_y) + (1 - alpha) sum_(j != y) softplus(z_j))

    No softmax over classes, so that a client with one class can train. The authors detach g's gradient.
    Learned: `bias`.
    """

    least_classes: ClassVar[int] = 1

    scale: Positive = 40.0
    margin: NonNegative = 0.4
    power: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 3.0
    positive_share: Share = 0.7
    loss_weight: Positive = 50.0
    grad_mode: GradMode = "straight-through"

    def init_learned(self, weight: Tensor) -> Tensors:
        return {"bias": weight.new_tensor(self.initial_bias(len(weight)))}

    def initial_bias(self, classes: int) -> float:
        """The bias at which positives and negatives pull equally on features at 90 degrees."""
        odds = self.positive_share / ((1 - self.positive_share) * max(classes - 1, 1))
        start = 2 * math.pow(0.5, self.power) - 1
        log_gap, rest = math.log(4 * odds) - 2 * self.scale * self.margin, 1 - odds
        root = math.sqrt(rest**2 + math.exp(log_gap))
        # rest + root, rewritten where it would cancel (few classes make rest negative)
        log_sum = math.log(rest + root) if rest > 0 else log_gap - math.log(root - rest)
        return math.log(2 * odds) - self.scale * (start + self.margin) - log_sum

    def similarity(self, cosine: Tensor) -> Tensor:
        spread = 2 * ((cosine + 1) / 2) ** self.power - 1
        return straight_through(cosine, spread) if self.grad_mode == "straight-through" else spread

    def true_class(self, seen: Cosines) -> Tensor:
        return self.similarity(seen.true) - self.margin

    def other_classes(self, seen: Cosines) -> Tensor:
        return self.similarity(seen.values) + self.margin

    def outputs(self, seen: Cosines) -> Tensor:
        return super().outputs(seen) + seen.trained("bias")

    def losses(self, seen: Cosines) -> Tensor:
        share = self.positive_share
        each = binary_losses(self.outputs(seen), seen.is_true, share, 1 - share)
        return self.loss_weight / self.scale * each


@dataclass(frozen=True, kw_only=True)
class UniFace(ScaledLoss):
    """One threshold b for all pairs (unified cross-entropy, Zhou et al. 2023, ICCV).

    loss = softplus(-(s (c_y - m) - b)) + w sum_(j != y) softplus(s c_j - b)

    Learned: `bias`, b, which starts at ln(10 C).
    """

    least_classes: ClassVar[int] = 1

    margin: NonNegative = 0.4
    negative_weight: Positive = 1.0

    def init_learned(self, weight: Tensor) -> Tensors:
        return {"bias": weight.new_tensor(math.log(10 * len(weight)))}

    def true_class(self, seen: Cosines) -> Tensor:
        return seen.true - self.margin

    def outputs(self, seen: Cosines) -> Tensor:
        return super().outputs(seen) - seen.trained("bias")

    def losses(self, seen: Cosines) -> Tensor:
        return binary_losses(self.outputs(seen), seen.is_true, negative=self.negative_weight)


@dataclass(frozen=True, kw_only=True)
class UniTSFace(ScaledLoss):
    """CosFace plus a unified threshold between samples (Li et al. 2023, NeurIPS, USS loss).

    loss = CosFace(s, m) + softplus(-(s (u_y - n) - b)) + sum_(j != y) softplus(s u_j - b)
    u_j  = cosine of the feature with the last feature seen of class j,  b = threshold + bias

    State: `memory` (C, d), zero for a class not yet seen, which then takes no part, and `threshold`, measured
    once as mean_i logsumexp_(j != y)(s u_ij). The memory holds raw embeddings: keep it on its client.
    Learned: `bias`, which starts at 0. `logits` are those of the CosFace part.
    """

    private: ClassVar[tuple[str, ...]] = ("memory", "threshold")

    margin: NonNegative = 0.4
    sample_margin: NonNegative = 0.1

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        if weight is None:
            raise ConfigError("UniTSFace remembers one feature per class: call init_state(weight)")
        return {"memory": torch.zeros_like(weight), "threshold": weight.new_zeros(())}

    def init_learned(self, weight: Tensor) -> Tensors:
        return {"bias": weight.new_zeros(())}

    def true_class(self, seen: Cosines) -> Tensor:
        return seen.true - self.margin

    def losses(self, seen: Cosines) -> Tensor:
        return super().losses(seen) + self.sample_losses(seen)

    def sample_losses(self, seen: Cosines) -> Tensor:
        """(B,): the sample-to-sample part, zero for an example whose class has no memory yet."""
        pairs, known = self.pairs(seen)
        shifted = torch.where(seen.is_true, pairs.values - self.sample_margin, pairs.values)
        logits = self.scale * shifted - seen.kept("threshold") - seen.trained("bias")
        absent = torch.where(seen.is_true, math.inf, -math.inf)
        losses = binary_losses(torch.where(known, logits, absent), seen.is_true)
        return torch.where((known & seen.is_true).any(dim=1), losses, 0.0)

    def pairs(self, seen: Cosines) -> tuple[Cosines, Tensor]:
        """The cosines with the memory, and (C,) which classes it holds."""
        memory = seen.kept("memory")
        if seen.features is None:
            raise ConfigError("UniTSFace compares features with its memory: call the loss, not logits")
        return replace(seen, values=cosine(seen.features, memory), own=None), memory.abs().sum(dim=1) > 0

    def advance(self, seen: Cosines) -> Mapping[str, Tensor]:
        pairs, known = self.pairs(seen)
        rivals = known & ~seen.is_true
        usable = seen.real & (known & seen.is_true).any(dim=1) & rivals.any(dim=1)
        log_sums = torch.where(rivals, self.scale * pairs.values, -1e30).logsumexp(dim=1)
        measured = torch.where(usable, log_sums, 0.0).sum() / usable.sum().clamp(min=1)
        kept = seen.kept("threshold")
        threshold = torch.where((kept == 0) & usable.any(), measured.to(kept.dtype), kept)
        return {**seen.state, "threshold": threshold}

    def remember(self, seen: Cosines) -> Mapping[str, Tensor]:
        memory, features = seen.kept("memory"), seen.features
        assert features is not None  # `pairs` has refused it
        positions = torch.arange(len(seen.labels), device=seen.labels.device)[:, None]
        last = torch.where(seen.is_true & seen.real[:, None], positions, -1).amax(dim=0)
        newest = features[last.clamp(min=0)].to(memory.dtype)
        return {**seen.state, "memory": torch.where((last >= 0)[:, None], newest, memory)}
