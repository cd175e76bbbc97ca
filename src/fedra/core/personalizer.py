"""The kind of part that says which model a client uses in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedra.core.model import Model, Weights
from fedra.core.part import Part
from fedra.core.rates import constant
from fedra.core.tree import Tree

if TYPE_CHECKING:
    from fedra.core.algorithm import Algorithm
    from fedra.core.batches import Examples
    from fedra.core.local_training import LocalTraining

Answers = Callable[[Tensor], dict[str, Tensor]]
"""Prepared inputs to scores of the classes, by the name of the way to answer."""


class Personalizer(Part, abstract=True):
    """Which model a client uses in the end.

    After the last round a client trains for itself for `epochs` (0: not at all; of several numbers each is tried and
    tested) from the final global model with its private parameters in place. What comes out, and what the client
    remembers, is its own model.
    """

    epochs: int | tuple[int, ...] = 0
    initial_rate: bool = False  # whether that training takes the first round's rate instead of the last one's

    @property
    def answers_are_probabilities(self) -> bool:
        """Whether `answers` gives probabilities; otherwise a softmax makes them of its scores."""
        return False

    @property
    def stages(self) -> tuple[int, ...]:
        """The lengths of own training that are tested, shortest first."""
        return (self.epochs,) if isinstance(self.epochs, int) else tuple(sorted(set(self.epochs)))

    def algorithm(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm of the client's own training, derived from the federation's."""
        return algorithm

    def training(self, local: LocalTraining, rounds: int) -> LocalTraining:
        """How a client trains for itself after so many rounds: as in the rounds, at one rate."""
        lr = local.lr if self.initial_rate else local.at(rounds).lr
        return replace(local, lr=lr, lr_decay=1.0, schedule=constant)

    def own(self, weights: Weights, memory: Tree) -> Weights:
        """The client's own model, of what it trained for itself (or received) and what it remembers of the rounds."""
        return weights

    def answers(self, model: Model, weights: Weights, local: Examples, draw: torch.Generator) -> Answers:
        """How a client with this model of its own and these examples scores the classes of prepared inputs.

        A personalizer may answer in several ways, by name; the one named "" is its own.
        """
        return lambda inputs: {"": model.output(weights, inputs).logits}
