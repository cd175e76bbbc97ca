"""The kind of part that says what a client trains on: its own examples, or public ones too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedra.core.batches import Examples
from fedra.core.evaluate import embed
from fedra.core.model import Model, Weights
from fedra.core.part import Part
from fedra.core.tree import Params
from fedra.errors import ConfigError

if TYPE_CHECKING:
    from fedra.core.algorithm import Algorithm


@dataclass(frozen=True)
class Public:
    """Examples of `classes` classes of their own, numbered from zero; no client holds any of these classes.

    What the body makes of them is the same for all clients that received the same body: it is kept until another comes.
    """

    examples: Examples
    classes: int
    _kept: list[tuple[Params, Tensor]] = field(default_factory=list, init=False, repr=False, compare=False)

    def features(self, model: Model, weights: Weights) -> Tensor:
        """The body's features of all public examples."""
        body = {name: value for group in weights for name, value in group.items() if name.startswith("body.")}
        if self._kept and all(torch.equal(value, self._kept[0][0][name]) for name, value in body.items()):
            return self._kept[0][1]
        found = embed(model, weights, self.examples)
        self._kept[:] = [({name: value.clone() for name, value in body.items()}, found)]
        return found


@dataclass(frozen=True, kw_only=True)
class Supply:
    """What a client may train on in a round, and the model it received; its own labels count from 0 to `classes`."""

    own: Examples
    public: Public
    classes: int
    model: Model
    received: Weights

    def own_features(self) -> Tensor:
        """The client's own examples (n, d) as the received body sees them."""
        return embed(self.model, self.received, self.own)

    def public_features(self) -> Tensor:
        """The public examples (N, d) as the received body sees them."""
        return self.public.features(self.model, self.received)


class DataRule(Part, abstract=True):
    """What a client trains on, where there are public examples beside its own."""

    def check_public(self, algorithm: Algorithm) -> None:
        """Refuse, with a sentence, public examples that would go unused or be misunderstood."""

    def first_public(self, features: Tensor, targets: Tensor, classes: int) -> Params:
        """Parameters that begin at what the start model makes of the public examples, which the server looks at."""
        return {}

    def examples(self, supply: Supply) -> Examples:
        """What the client trains on in a round; labels of public examples count on from `supply.classes`."""
        raise TypeError(f"{type(self).__name__} must define examples")


@dataclass(frozen=True)
class OwnData(DataRule):
    """A client trains on its own examples."""

    formula: ClassVar[str] = "D_k"

    def check_public(self, algorithm: Algorithm) -> None:
        raise ConfigError("no part of this algorithm trains on public examples: use fedfr, or leave them out")

    def examples(self, supply: Supply) -> Examples:
        return supply.own
