"""The interface of every loss: `loss(features, weight, labels)`, its per-example form, its explicit state.

A loss is a frozen dataclass of numbers. What changes during training is passed in and handed back:

    state    running statistics (a dict of tensors): `init_state`, then whatever `step` returns
    learned  extra trained parameters (a threshold, margins per class): `init_learned`, then your optimizer's
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
from fedra.losses.angle import Overflow, add_angle, cosine, straight_through, working_dtype
from fedra.losses.checks import check_cosines, check_finite, check_range, check_settings, check_shapes

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AngularMargin = Annotated[float, Field(ge=0, le=math.pi / 2)]
Rate = Annotated[float, Field(gt=0, le=1)]
GradMode = Literal["exact", "straight-through"]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Cosines:
    """What a margin may look at: the cosines (B, C) of a batch, its labels, and what the loss carries."""

    values: Tensor
    labels: Tensor
    features: Tensor | None = None
    norms: Tensor | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)
    learned: Mapping[str, Tensor] = field(default_factory=dict)
    generator: torch.Generator | None = None

    @property
    def is_true(self) -> Tensor:
        """(B, C): whether the column is the example's own class; a label of -1 has none."""
        return self.labels[:, None] == torch.arange(self.values.shape[1], device=self.labels.device)

    @property
    def true(self) -> Tensor:
        """(B,): the cosine with the example's own class."""
        return self.values.gather(1, self.labels.clamp(min=0)[:, None])[:, 0]

    @property
    def lengths(self) -> Tensor:
        """(B,): the features' norms, for the losses that use them."""
        if self.norms is None:
            raise ConfigError("this loss uses the length of the features: pass norms=features.norm(dim=1)")
        return self.norms

    def kept(self, name: str) -> Tensor:
        """A running statistic."""
        if name not in self.state:
            raise ConfigError(
                f"this loss keeps '{name}' from step to step: start with state=loss.init_state(weight) and "
                "pass on what loss.step returns, or wrap the loss in fedra.losses.Stateful"
            )
        return self.state[name]

    def trained(self, name: str) -> Tensor:
        """A trained parameter of the loss itself."""
        if name not in self.learned:
            raise ConfigError(
                f"this loss trains '{name}': pass learned=loss.init_learned(weight) and give those tensors "
                "to your optimizer, or wrap the loss in fedra.losses.Stateful"
            )
        return self.learned[name]


@dataclass(frozen=True, kw_only=True)
class AngularLoss:
    """Cross-entropy on cosines; a subclass overrides `true_class`, `other_classes` and `scaling`.

    `check` looks at the values of the labels and of the loss; switch it off inside vmap and compile.
    """

    least_classes: ClassVar[int] = 2

    check: bool = True

    def __post_init__(self) -> None:
        check_settings(self)

    # What anybody calls.

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
        """The mean loss of features (B, d) with class weights (C, d) and labels (B,)."""
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
        """The loss of every example (B,), at the state as it is."""
        seen = self._look(features, weight, labels, state, learned, generator)
        return self._finite(self.losses(seen), features, weight)

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
    ) -> tuple[Tensor, Tensors]:
        """One training step, without side effects: the loss of every example (B,) and the new state.

        `mask` (B,) is False at padding, which then leaves no trace in the state.
        """
        seen = self._look(features, weight, labels, state, learned, generator)
        real = torch.ones_like(seen.labels, dtype=torch.bool) if mask is None else mask.bool()
        with torch.no_grad():
            seen = replace(seen, state=self.advance(seen, real))
        losses = self._finite(self.losses(seen), features, weight)
        with torch.no_grad():
            after = self.remember(seen, real)
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
        """The logits (B, C) the loss sees; a label of -1 means that no column is the true class."""
        check_cosines(type(self).__name__, cosine, labels)
        if self.check:
            check_range(type(self).__name__, labels, cosine.shape[1], least=-1)
        values = cosine.to(working_dtype(cosine))
        return self.outputs(Cosines(values, labels.long(), None, norms, state or {}, learned or {}, generator))

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        """The running statistics before the first step; some have the shape of the class weights."""
        return {}

    def init_learned(self, weight: Tensor) -> Tensors:
        """The loss's own trained parameters before the first step."""
        return {}

    # What a loss overrides.

    def compare(self, features: Tensor, weight: Tensor) -> Tensor:
        return cosine(features, weight)

    def true_class(self, seen: Cosines) -> Tensor:
        return seen.true

    def other_classes(self, seen: Cosines) -> Tensor:
        return seen.values

    def scaling(self, seen: Cosines) -> Tensor | float:
        return 1.0

    def outputs(self, seen: Cosines) -> Tensor:
        merged = torch.where(seen.is_true, self.true_class(seen)[:, None], self.other_classes(seen))
        return self.scaling(seen) * merged

    def losses(self, seen: Cosines) -> Tensor:
        return F.cross_entropy(self.outputs(seen), seen.labels, reduction="none")

    def advance(self, seen: Cosines, real: Tensor) -> Mapping[str, Tensor]:
        """The state this step is computed with."""
        return seen.state

    def remember(self, seen: Cosines, real: Tensor) -> Mapping[str, Tensor]:
        """The state after this step."""
        return seen.state

    # What every call begins and ends with.

    def _look(
        self,
        features: Tensor,
        weight: Tensor,
        labels: Tensor,
        state: Mapping[str, Tensor] | None,
        learned: Mapping[str, Tensor] | None,
        generator: torch.Generator | None,
    ) -> Cosines:
        check_shapes(type(self).__name__, features, weight, labels, self.least_classes)
        if self.check:
            check_range(type(self).__name__, labels, len(weight))
        rows = features.to(working_dtype(features, weight))
        norms = torch.linalg.vector_norm(rows, dim=1)
        values = self.compare(features, weight)
        return Cosines(values, labels.long(), rows, norms, state or {}, learned or {}, generator)

    def _finite(self, losses: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        if self.check:
            check_finite(type(self).__name__, losses, features, weight)
        return losses


@dataclass(frozen=True, kw_only=True)
class ScaledLoss(AngularLoss):
    """Logits = scale * cosine."""

    scale: Positive = 64.0

    def scaling(self, seen: Cosines) -> Tensor | float:
        return self.scale


@dataclass(frozen=True, kw_only=True)
class CurvedLoss(ScaledLoss):
    """A true-class cosine bent by a curve; a subclass overrides `curve`.

    `grad_mode` "exact" differentiates the curve; "straight-through" takes its value and the gradient of the
    plain cosine, as several published code bases do.
    """

    grad_mode: GradMode = "exact"

    def true_class(self, seen: Cosines) -> Tensor:
        bent = self.curve(seen)
        return straight_through(seen.true, bent) if self.grad_mode == "straight-through" else bent

    def curve(self, seen: Cosines) -> Tensor:
        return seen.true


@dataclass(frozen=True, kw_only=True)
class ShiftedLoss(CurvedLoss):
    """A true-class angle shifted by a margin; `overflow` is the rule beyond 180 degrees (`add_angle`)."""

    overflow: Overflow = "thmm"

    def shift(self, seen: Cosines, margin: Tensor | float) -> Tensor:
        return add_angle(seen.true, margin, self.overflow)
