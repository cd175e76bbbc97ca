"""Losses on independent (feature, class) pairs: CircleLoss, SphereFace2, UniFace, UniTSFace."""

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
from fedra.losses import LOSSES
from fedra.losses.angle import cosine, straight_through
from fedra.losses.angular_loss import Cosines, GradMode, NonNegative, Positive, ScaledLoss, Tensors

Share = Annotated[float, Field(gt=0, lt=1)]


def binary_losses(logits: Tensor, is_true: Tensor, positive: float = 1.0, negative: float = 1.0) -> Tensor:
    """Return (B,): softplus(-z) at the true class plus softplus(z) at every other class, each with its weight."""
    return torch.where(is_true, positive * F.softplus(-logits), negative * F.softplus(logits)).sum(dim=1)


@LOSSES.add("circle")
@dataclass(frozen=True, kw_only=True)
class CircleLoss(ScaledLoss):
    """Similarities weighted by their distance from an optimum (Sun et al. 2020, arXiv:2002.10857).

    logit_y = s [1 + m - c_y]+ (c_y - (1 - m)),  logit_j = s [c_j + m]+ (c_j - m),  brackets without gradient

    Args:
        scale: Scale s of the logits.
        margin: Margin m.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> CircleLoss(margin=0.3)(features, weight, labels).shape
        torch.Size([])
    """

    scale: Positive = 256.0
    margin: NonNegative = 0.25

    def true_class(self, batch: Cosines) -> Tensor:
        factor = (1 + self.margin - batch.true).detach().relu()
        return factor * (batch.true - (1 - self.margin))

    def other_classes(self, batch: Cosines) -> Tensor:
        factor = (batch.values + self.margin).detach().relu()
        return factor * (batch.values - self.margin)


@LOSSES.add("sphereface2")
@dataclass(frozen=True, kw_only=True)
class SphereFace2(ScaledLoss):
    """A binary classifier for every class (Wen et al. 2022, arXiv:2108.01513, the additive form C).

    z_y  = r (g(c_y) - m) + b,  z_j = r (g(c_j) + m) + b,  g(c) = 2 ((c + 1) / 2)^t - 1
    loss = (w / r) (alpha softplus(-z_y) + (1 - alpha) sum_(j != y) softplus(z_j))

    There is no softmax over classes, so a client with one class can train.

    Learned: `bias`.

    Args:
        scale: Scale r of the logits.
        margin: Margin m on the cosines.
        power: Exponent t of the similarity adjustment g.
        positive_share: Weight alpha of the positive pair.
        loss_weight: Weight w of the loss.
        grad_mode: "straight-through" (the default, as the authors do) uses the value of g with the gradient of the
            plain cosine; "exact" differentiates g.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = SphereFace2()
        >>> loss(features, weight, labels, learned=loss.init_learned(weight)).shape
        torch.Size([])
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
        """Return the bias at which positive and negative pairs have equal gradients for features at 90 degrees."""
        odds = self.positive_share / ((1 - self.positive_share) * max(classes - 1, 1))
        start = 2 * math.pow(0.5, self.power) - 1
        log_gap, rest = math.log(4 * odds) - 2 * self.scale * self.margin, 1 - odds
        root = math.sqrt(rest**2 + math.exp(log_gap))
        # rest + root, rewritten where it would cancel: with few classes rest is negative
        log_sum = math.log(rest + root) if rest > 0 else log_gap - math.log(root - rest)
        return math.log(2 * odds) - self.scale * (start + self.margin) - log_sum

    def similarity(self, cosine: Tensor) -> Tensor:
        """Return the adjusted similarity g(cosine)."""
        spread = 2 * ((cosine + 1) / 2) ** self.power - 1
        return straight_through(cosine, spread) if self.grad_mode == "straight-through" else spread

    def true_class(self, batch: Cosines) -> Tensor:
        return self.similarity(batch.true) - self.margin

    def other_classes(self, batch: Cosines) -> Tensor:
        return self.similarity(batch.values) + self.margin

    def outputs(self, batch: Cosines) -> Tensor:
        return super().outputs(batch) + batch.learned_parameter("bias")

    def losses(self, batch: Cosines) -> Tensor:
        share = self.positive_share
        each = binary_losses(self.outputs(batch), batch.is_true, share, 1 - share)
        return self.loss_weight / self.scale * each


@LOSSES.add("uniface")
@dataclass(frozen=True, kw_only=True)
class UniFace(ScaledLoss):
    """One threshold b for all pairs (unified cross-entropy, Zhou et al. 2023, ICCV).

    loss = softplus(-(s (c_y - m) - b)) + w sum_(j != y) softplus(s c_j - b)

    Learned: `bias`, b, which starts at ln(10 C).

    Args:
        margin: Margin m on the true-class cosine.
        negative_weight: Weight w of the negative pairs.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = UniFace()
        >>> loss(features, weight, labels, learned=loss.init_learned(weight)).shape
        torch.Size([])
    """

    least_classes: ClassVar[int] = 1

    margin: NonNegative = 0.4
    negative_weight: Positive = 1.0

    def init_learned(self, weight: Tensor) -> Tensors:
        return {"bias": weight.new_tensor(math.log(10 * len(weight)))}

    def true_class(self, batch: Cosines) -> Tensor:
        return batch.true - self.margin

    def outputs(self, batch: Cosines) -> Tensor:
        return super().outputs(batch) - batch.learned_parameter("bias")

    def losses(self, batch: Cosines) -> Tensor:
        return binary_losses(self.outputs(batch), batch.is_true, negative=self.negative_weight)


@LOSSES.add("unitsface")
@dataclass(frozen=True, kw_only=True)
class UniTSFace(ScaledLoss):
    """CosFace plus a unified threshold between samples (Li et al. 2023, NeurIPS, USS loss).

    loss = CosFace(s, m) + softplus(-(s (u_y - n) - b)) + sum_(j != y) softplus(s u_j - b)
    u_j  = cosine of the feature with the last feature of class j,  b = threshold + bias

    State: `memory` (C, d), zero and without effect for a class that has not occurred yet, and `threshold`, measured
    once as mean_i logsumexp_(j != y)(s u_ij). The memory holds raw embeddings: keep it on its client.

    Learned: `bias`, which starts at 0. `logits` are those of the CosFace part.

    Args:
        margin: Margin m of the CosFace part.
        sample_margin: Margin n between samples.
        scale: Scale s of the logits.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = UniTSFace()
        >>> start = loss.init_state(weight)
        >>> losses, state = loss.step(features, weight, labels, start, learned=loss.init_learned(weight))
        >>> losses.shape, sorted(state)
        (torch.Size([8]), ['memory', 'threshold'])
    """

    private: ClassVar[tuple[str, ...]] = ("memory", "threshold")

    margin: NonNegative = 0.4
    sample_margin: NonNegative = 0.1

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        if weight is None:
            raise ConfigError("weight must be given for the state of UniTSFace, got None: call init_state(weight)")
        return {"memory": torch.zeros_like(weight), "threshold": weight.new_zeros(())}

    def init_learned(self, weight: Tensor) -> Tensors:
        return {"bias": weight.new_zeros(())}

    def true_class(self, batch: Cosines) -> Tensor:
        return batch.true - self.margin

    def losses(self, batch: Cosines) -> Tensor:
        return super().losses(batch) + self.sample_losses(batch)

    def sample_losses(self, batch: Cosines) -> Tensor:
        """Return (B,): the sample-to-sample part, zero for an example whose class has no memory yet."""
        pairs, known = self.pairs(batch)
        shifted = torch.where(batch.is_true, pairs.values - self.sample_margin, pairs.values)
        logits = self.scale * shifted - batch.statistic("threshold") - batch.learned_parameter("bias")
        absent = torch.where(batch.is_true, math.inf, -math.inf)
        losses = binary_losses(torch.where(known, logits, absent), batch.is_true)
        return torch.where((known & batch.is_true).any(dim=1), losses, 0.0)

    def pairs(self, batch: Cosines) -> tuple[Cosines, Tensor]:
        """Return the cosines with the memory, and (C,) which classes it holds."""
        memory = batch.statistic("memory")
        values = cosine(batch.require("features"), memory)
        return replace(batch, values=values, true_cosines=None), memory.abs().sum(dim=1) > 0

    def advance(self, batch: Cosines) -> Mapping[str, Tensor]:
        pairs, known = self.pairs(batch)
        others = known & ~batch.is_true
        usable = batch.is_real & (known & batch.is_true).any(dim=1) & others.any(dim=1)
        log_sums = torch.where(others, self.scale * pairs.values, -1e30).logsumexp(dim=1)
        measured = torch.where(usable, log_sums, 0.0).sum() / usable.sum().clamp(min=1)
        past = batch.statistic("threshold")
        threshold = torch.where((past == 0) & usable.any(), measured.to(past.dtype), past)
        return {**batch.state, "threshold": threshold}

    def remember(self, batch: Cosines) -> Mapping[str, Tensor]:
        memory, features = batch.statistic("memory"), batch.features
        assert features is not None  # `pairs` has checked it
        positions = torch.arange(len(batch.labels), device=batch.labels.device)[:, None]
        last = torch.where(batch.is_true & batch.is_real[:, None], positions, -1).amax(dim=0)
        newest = features[last.clamp(min=0)].to(memory.dtype)
        return {**batch.state, "memory": torch.where((last >= 0)[:, None], newest, memory)}
