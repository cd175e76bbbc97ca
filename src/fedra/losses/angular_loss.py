"""The interface of every loss: `loss(features, weight, labels)`, its per-example form, its explicit state.

A loss is a frozen dataclass of numbers. What changes during training is passed in and handed back:

    state    running statistics (a dict of tensors): `init_state`, then whatever `step` returns
    learned  extra trained parameters (a threshold, margins per class): `init_learned`, then your optimizer's
    drawn    random numbers (a dict of tensors, one row per example): `draw`, or drawn from `generator` for you
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
    """What a margin may look at: the cosines (B, C) of a batch, its labels, and what the loss carries."""

    values: Tensor
    labels: Tensor
    features: Tensor | None = None
    norms: Tensor | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)
    learned: Mapping[str, Tensor] = field(default_factory=dict)
    drawn: Mapping[str, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None
    own: Tensor | None = None

    @property
    def real(self) -> Tensor:
        """(B,): whether the row is an example; False at padding."""
        return torch.ones_like(self.labels, dtype=torch.bool) if self.mask is None else self.mask.bool()

    @property
    def is_true(self) -> Tensor:
        """(B, C): whether the column is the example's own class; a label of -1 has none."""
        return self.labels[:, None] == torch.arange(self.values.shape[1], device=self.labels.device)

    @property
    def true(self) -> Tensor:
        """(B,): the cosine with the example's own class."""
        if self.own is not None:
            return self.own
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

    A federation averages the clients' states, but of `counters` it keeps the largest, and `private` ones stay with
    their client.
    """

    least_classes: ClassVar[int] = 2
    counters: ClassVar[tuple[str, ...]] = ()
    private: ClassVar[tuple[str, ...]] = ()

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
        drawn = self.draw(len(labels), generator, working_dtype(features, weight))
        seen = self._look(features, weight, labels, state, learned, drawn)
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
        drawn: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensors]:
        """One training step, without side effects: the loss of every example (B,) and the new state.

        `mask` (B,) is False at padding, which then leaves no trace in the state. `drawn` is what `draw` gave, for a
        step inside vmap or compile, where nothing can be drawn.
        """
        if drawn is None:
            drawn = self.draw(len(labels), generator, working_dtype(features, weight))
        seen = self._look(features, weight, labels, state, learned, drawn, mask)
        with torch.no_grad():
            seen = replace(seen, state=self.advance(seen))
        losses = self._finite(self.losses(seen), features, weight)
        with torch.no_grad():
            after = self.remember(seen)
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
        drawn = self.draw(len(labels), generator, values.dtype)
        seen = Cosines(values, labels.long().clamp(min=0), None, norms, state or {}, learned or {}, drawn)
        plain = self.scaling(seen) * self.other_classes(seen)
        return torch.where(labels[:, None] < 0, plain, self.outputs(seen))

    def init_state(self, weight: Tensor | None = None) -> Tensors:
        """The running statistics before the first step; some have the shape of the class weights."""
        return {}

    def init_learned(self, weight: Tensor) -> Tensors:
        """The loss's own trained parameters before the first step."""
        return {}

    def draw(
        self, examples: int, generator: torch.Generator | None, dtype: torch.dtype = torch.float32
    ) -> Mapping[str, Tensor]:
        """The random numbers of one step, a row for each example; a generator of None is torch's default one."""
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
        """The logits of labels from 0 up."""
        scale, others, own = self.scaling(seen), self.other_classes(seen), self.true_class(seen)
        if isinstance(scale, Tensor):
            others, own, scale = scale * others, (scale * own[:, None])[:, 0], 1.0
        return with_true_class(others, own, seen.labels, scale)

    def losses(self, seen: Cosines) -> Tensor:
        return F.cross_entropy(self.outputs(seen), seen.labels, reduction="none")

    def advance(self, seen: Cosines) -> Mapping[str, Tensor]:
        """The state this step is computed with."""
        return seen.state

    def remember(self, seen: Cosines) -> Mapping[str, Tensor]:
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
        drawn: Mapping[str, Tensor],
        mask: Tensor | None = None,
    ) -> Cosines:
        check_shapes(type(self).__name__, features, weight, labels, self.least_classes)
        if self.check:
            check_range(type(self).__name__, labels, len(weight))
        rows = features.to(working_dtype(features, weight))
        norms = torch.linalg.vector_norm(rows, dim=1)
        if type(self).compare is AngularLoss.compare:
            values, own = cosine_and_true(features, weight, labels.long())
        else:
            values, own = self.compare(features, weight), None
        return Cosines(values, labels.long(), rows, norms, state or {}, learned or {}, drawn, mask, own)

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
