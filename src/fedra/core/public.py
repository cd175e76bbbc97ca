"""Public examples: everybody has them beside their own, and trains on those that a part chooses in every round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples
from fedra.core.evaluate import embed
from fedra.core.model import Model, Weights
from fedra.core.part import Part
from fedra.core.tree import Params
from fedra.errors import ConfigError


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


def joined(
    own: Examples, public: Public, algorithm: Algorithm, model: Model, received: Weights, first: int
) -> Examples:
    """A client's examples and behind them the public ones it chooses; public labels count on from `first`."""
    weights = Weights(model.arrange(received.params), model.arrange(received.buffers))
    mine, theirs = embed(model, weights, own), public.features(model, weights)
    chosen = torch.zeros(len(theirs), dtype=torch.bool)
    for part in choosers(algorithm):
        chosen |= part.choose_public(mine, theirs)
    inputs, targets = public.examples.inputs[chosen], public.examples.targets[chosen]
    return replace(own, inputs=torch.cat([own.inputs, inputs]), targets=torch.cat([own.targets, targets + first]))


def choosers(algorithm: Algorithm) -> list[Part]:
    """The parts that train on public examples."""
    return [part for part in algorithm.parts().values() if type(part).choose_public is not Part.choose_public]


def refuse_useless_public(algorithm: Algorithm) -> None:
    """Public examples need a part that chooses among them, and a loss of the labels that knows their classes."""
    known = choosers(algorithm)
    if not known:
        raise ConfigError("no part of this algorithm trains on public examples: take fedfr, or leave [public] out")
    for term in algorithm.objective:
        if term.fits_labels and term not in known:
            raise ConfigError(
                f"the loss '{term.name}' does not know the classes of public examples: leave it out, or leave [public] "
                "out"
            )
