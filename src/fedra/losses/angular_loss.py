"""The interface of every loss: `loss(features, weight, labels)`, the loss per example, and explicit state.

A loss is a frozen dataclass of numbers. What changes during training is passed in and returned:

    state    running statistics (a dict of tensors): `init_state`, then whatever `step` returns
    learned  additional trained parameters (a threshold, margins per class): `init_learned`, then your optimizer's
    drawn    random numbers (a dict of tensors, one row per example): `draw`, or drawn from `generator`
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedra.errors import ConfigError
from fedra.losses.angle import (
    Overflow,
    add_angle,
    cosine,
    cosine_and_true,
    straight_through,
    with_true_class,
    working_dtype,
)
from fedra.losses.checks import check_cosines, check_finite, check_range, check_settings, check_shapes

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AngularMargin = Annotated[float, Field(ge=0, le=math.pi / 2)]
Rate = Annotated[float, Field(gt=0, le=1)]
GradMode = Literal["exact", "straight-through"]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Cosines:
    """What a loss can read: cosines (B, C), labels, features, class vectors, its state, parameters and draws."""

    values: Tensor
    labels: Tensor
    features: Tensor | None = None
    norms: Tensor | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)
    learned: Mapping[str, Tensor] = field(default_factory=dict)
    drawn: Mapping[str, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None
    true_cosines: Tensor | None = None
    vectors: Tensor | None = None

    @property
    def is_real(self) -> Tensor:
        """(B,): whether the row is an example; False for padding."""
        return torch.ones_like(self.labels, dtype=torch.bool) if self.mask is None else self.mask.bool()

    @property
    def is_true(self) -> Tensor:
        """(B, C): whether the column is the example's true class; a label of -1 has none."""
        return self.labels[:, None] == torch.arange(self.values.shape[1], device=self.labels.device)

    @property
    def true(self) -> Tensor:
        """(B,): the cosine with the example's true class."""
        if self.true_cosines is not None:
            return self.true_cosines
        return self.values.gather(1, self.labels.clamp(min=0)[:, None])[:, 0]

    @property
    def lengths(self) -> Tensor:
        """(B,): the norms of the features, for the losses that use them."""
        if self.norms is None:
            raise ConfigError("norms must be given for a loss that uses them, got None: pass features.norm(dim=1)")
        return self.norms

    def require(self, name: Literal["features", "vectors"]) -> Tensor:
        """Return the features (B, d) or the class vectors (C, d), for the losses that use more than cosines."""
        found: Tensor | None = getattr(self, name)
        if found is None:
            raise ConfigError(f"{name} must be given to this loss, got cosines alone: call the loss, not its logits")
        return found

    def statistic(self, name: str) -> Tensor:
        """Return a running statistic."""
        if name not in self.state:
            raise ConfigError(
                f"state must have the running statistic '{name}' of this loss, got {sorted(self.state)}: start with "
                "loss.init_state(weight) and pass on what loss.step returns, or wrap the loss in fedra.losses.Stateful"
            )
        return self.state[name]

    def learned_parameter(self, name: str) -> Tensor:
        """Return a trained parameter of the loss."""
        if name not in self.learned:
            raise ConfigError(
                f"learned must have the trained parameter '{name}' of this loss, got {sorted(self.learned)}: pass "
                "loss.init_learned(weight) and give those tensors to your optimizer, or wrap the loss in "
                "fedra.losses.Stateful"
            )
        return self.learned[name]


@dataclass(frozen=True, kw_only=True)
class AngularLoss:
    """Base class of all losses: cross-entropy on cosines.

    A subclass overrides `true_class`, `other_classes` or `scaling`.

    In a federation, clients' states are averaged; entries named in `counters` take the maximum instead, and entries
    named in `private` stay on their client.

    Args:
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> class HalfCosine(AngularLoss):
        ...     def true_class(self, batch):
        ...         return 0.5 * batch.true
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> HalfCosine()(features, weight, labels).shape
        torch.Size([])
    """

    least_classes: ClassVar[int] = 2
    counters: ClassVar[tuple[str, ...]] = ()
    private: ClassVar[tuple[str, ...]] = ()
    trains_vectors: ClassVar[bool] = True  # False for a loss between examples, which leaves class vectors unchanged

    check: bool = True

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(
        self,
        features: Tensor,
        weight: Tensor,
        labels: Tensor,
        *,
        state: Mapping[str, Tensor] | None = None,
        learned: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the mean loss of a batch.

        Args:
            features: Features (B, d).
            weight: Class vectors (C, d).
            labels: Class indices (B,).
            state: Running statistics; required by the losses that have any (`init_state`).
            learned: Trained parameters of the loss; required by the losses that have any (`init_learned`).
            generator: Draws random margins; None (the default) is torch's default generator.

        Returns:
            A scalar to call `backward()` on.
        """
        return self.per_example(features, weight, labels, state=state, learned=learned, generator=generator).mean()

    def per_example(
        self,
        features: Tensor,
        weight: Tensor,
        labels: Tensor,
        *,
        state: Mapping[str, Tensor] | None = None,
        learned: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the loss of every example, without updating the state.

        Args:
            features: Features (B, d).
            weight: Class vectors (C, d).
            labels: Class indices (B,).
            state: Running statistics; required by the losses that have any.
            learned: Trained parameters of the loss; required by the losses that have any.
            generator: Draws random margins; None (the default) is torch's default generator.

        Returns:
            The losses (B,).
        """
        drawn = self.draw(len(labels), generator, working_dtype(features, weight))
        batch = self._cosines(features, weight, labels, state, learned, drawn)
        return self._require_finite(self.losses(batch), features, weight)

    def step(
        self,
        features: Tensor,
        weight: Tensor,
        labels: Tensor,
        state: Mapping[str, Tensor],
        *,
        mask: Tensor | None = None,
        learned: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
        drawn: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensors]:
        """Compute one training step without side effects.

        Args:
            features: Features (B, d).
            weight: Class vectors (C, d).
            labels: Class indices (B,).
            state: Running statistics before the step; {} for a loss without any.
            mask: (B,), False for padding, which then does not change the state; None (the default) means no padding.
            learned: Trained parameters of the loss; required by the losses that have any.
            generator: Draws random margins; None (the default) is torch's default generator.
            drawn: The result of `draw`, for a step inside vmap or torch.compile, where nothing can be drawn.

        Returns:
            The losses (B,), and the state after the step.
        """
        if drawn is None:
            drawn = self.draw(len(labels), generator, working_dtype(features, weight))
        batch = self._cosines(features, weight, labels, state, learned, drawn, mask)
        with torch.no_grad():
            batch = replace(batch, state=self.advance(batch))
        losses = self._require_finite(self.losses(batch), features, weight)
        with torch.no_grad():
            after = self.remember(batch)
        return losses, {name: value.detach().to(state[name].dtype) for name, value in after.items()}

    def logits(
        self,
        cosine: Tensor,
        labels: Tensor,
        *,
        norms: Tensor | None = None,
        state: Mapping[str, Tensor] | None = None,
        learned: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the logits that the loss sees.

        Args:
            cosine: Cosines (B, C) of features with class vectors.
            labels: Class indices (B,); -1 means that no column is the true class.
            norms: Norms (B,) of the features; required by the losses that use them.
            state: Running statistics; required by the losses that have any.
            learned: Trained parameters of the loss; required by the losses that have any.
            generator: Draws random margins; None (the default) is torch's default generator.

        Returns:
            The logits (B, C), with margin and scale.
        """
        check_cosines(type(self).__name__, cosine, labels)
        if self.check:
            check_range(type(self).__name__, labels, cosine.shape[1], least=-1)
        values = cosine.to(working_dtype(cosine))
        drawn = self.draw(len(labels), generator, values.dtype)
        batch = Cosines(values, labels.long().clamp(min=0), None, norms, state or {}, learned or {}, drawn)
        plain = self.scaling(batch) * self.other_classes(batch)
        return torch.where(labels[:, None] < 0, plain, self.outputs(batch))

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        """Return the running statistics before the first step.

        Args:
            weight: The class vectors; required if a statistic has their shape.

        Returns:
            Tensors by name; {} for a loss without state.
        """
        return {}

    def init_learned(self, weight: Tensor) -> Tensors:
        """Return the loss's own trained parameters before the first step.

        Args:
            weight: The class vectors (C, d).

        Returns:
            Tensors by name; {} for a loss without any.
        """
        return {}

    def draw(
        self, examples: int, generator: torch.Generator | None, dtype: torch.dtype = torch.float32
    ) -> Mapping[str, Tensor]:
        """Draw the random numbers of one step.

        Args:
            examples: Number of examples.
            generator: The generator; None is torch's default generator.
            dtype: Type of the numbers.

        Returns:
            Tensors by name, one row per example; {} for a loss without random margins.
        """
        return {}

    # Hooks for subclasses.

    def compare(self, features: Tensor, weight: Tensor) -> Tensor:
        """Return the similarities (B, C) of features with class vectors: cosines unless a loss overrides it."""
        return cosine(features, weight)

    def true_class(self, batch: Cosines) -> Tensor:
        """Return the true-class entries (B,) with their margin, without scale."""
        return batch.true

    def other_classes(self, batch: Cosines) -> Tensor:
        """Return the entries (B, C) of the other classes, without scale; the true-class column is replaced later."""
        return batch.values

    def scaling(self, batch: Cosines) -> Tensor | float:
        """Return the scale: a number, or a tensor that broadcasts over (B, C)."""
        return 1.0

    def outputs(self, batch: Cosines) -> Tensor:
        """Return the logits for labels of 0 and above."""
        scale, others, true = self.scaling(batch), self.other_classes(batch), self.true_class(batch)
        if isinstance(scale, Tensor):
            others, true, scale = scale * others, (scale * true[:, None])[:, 0], 1.0
        return with_true_class(others, true, batch.labels, scale)

    def losses(self, batch: Cosines) -> Tensor:
        """Return the loss of every example (B,)."""
        return F.cross_entropy(self.outputs(batch), batch.labels, reduction="none")

    def advance(self, batch: Cosines) -> Mapping[str, Tensor]:
        """Return the state that this step is computed with."""
        return batch.state

    def remember(self, batch: Cosines) -> Mapping[str, Tensor]:
        """Return the state after this step."""
        return batch.state

    def _cosines(
        self,
        features: Tensor,
        weight: Tensor,
        labels: Tensor,
        state: Mapping[str, Tensor] | None,
        learned: Mapping[str, Tensor] | None,
        drawn: Mapping[str, Tensor],
        mask: Tensor | None = None,
    ) -> Cosines:
        check_shapes(type(self).__name__, features, weight, labels, self.least_classes)
        if self.check:
            check_range(type(self).__name__, labels, len(weight))
        rows = features.to(working_dtype(features, weight))
        norms = torch.linalg.vector_norm(rows, dim=1)
        if type(self).compare is AngularLoss.compare:
            values, true = cosine_and_true(features, weight, labels.long())
        else:
            values, true = self.compare(features, weight), None
        return Cosines(values, labels.long(), rows, norms, state or {}, learned or {}, drawn, mask, true, weight)

    def _require_finite(self, losses: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        if self.check:
            check_finite(type(self).__name__, losses, features, weight)
        return losses


@dataclass(frozen=True, kw_only=True)
class ScaledLoss(AngularLoss):
    """Base class: logits are scale * cosine."""

    scale: Positive = 64.0

    def scaling(self, batch: Cosines) -> Tensor | float:
        return self.scale


@dataclass(frozen=True, kw_only=True)
class CurvedLoss(ScaledLoss):
    """Base class: the true-class cosine is replaced by a function of it; a subclass overrides `curve`."""

    grad_mode: GradMode = "exact"

    def true_class(self, batch: Cosines) -> Tensor:
        modified = self.curve(batch)
        return straight_through(batch.true, modified) if self.grad_mode == "straight-through" else modified

    def curve(self, batch: Cosines) -> Tensor:
        """Return the function of the true-class cosine (B,)."""
        return batch.true


@dataclass(frozen=True, kw_only=True)
class ShiftedLoss(CurvedLoss):
    """Base class: the true-class angle is shifted by a margin; `overflow` applies beyond 180 degrees (`add_angle`)."""

    overflow: Overflow = "thmm"

    def shift(self, batch: Cosines, margin: Tensor | float) -> Tensor:
        """Return the cosine (B,) of the true-class angle plus the margin."""
        return add_angle(batch.true, margin, self.overflow)
