"""Personalizers, the parts that give each client its personal model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedra.core.model import Model, Weights
from fedra.core.part import Part
from fedra.core.tree import Tree

if TYPE_CHECKING:
    from fedra.core.algorithm import Algorithm
    from fedra.core.batches import Examples
    from fedra.core.local_training import LocalTraining

Answers = Callable[[Tensor], dict[str, Tensor]]
"""From prepared inputs to class scores, by the name of the prediction method."""


class Personalizer(Part, abstract=True):
    """Gives each client its personal model after the last round.

    The client trains for `epochs` on its own data, from the final global model with its private parameters. The
    result, together with the client state, is its personal model.

    Args:
        epochs: Epochs of personal training: 0 for none; several numbers are evaluated one by one.
        initial_rate: Whether personal training uses the learning rate of the first round instead of the last.

    Example:
        ```python
        algorithm = fedra.algorithms.fedavg().plus(FineTune(epochs=(1, 5)))
        ```
    """

    epochs: int | tuple[int, ...] = 0
    initial_rate: bool = False

    @property
    def answers_are_probabilities(self) -> bool:
        """Whether `answers` returns probabilities instead of logits."""
        return False

    @property
    def stages(self) -> tuple[int, ...]:
        """The numbers of epochs that are evaluated, in increasing order."""
        return (self.epochs,) if isinstance(self.epochs, int) else tuple(sorted(set(self.epochs)))

    def algorithm(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm of personal training.

        Args:
            algorithm: The algorithm of the federation.

        Returns:
            The algorithm that a client trains its personal model with.
        """
        return algorithm

    def training(self, local: LocalTraining, rounds: int) -> LocalTraining:
        """Personal training: as in the rounds, with constant learning rates.

        Args:
            local: Local training in the rounds.
            rounds: Number of rounds done.

        Returns:
            The settings of personal training.
        """
        lr = local.lr if self.initial_rate else local.at(rounds).lr
        return replace(local.with_lr(lr), sampling="shuffle")  # every example once per epoch

    def own(self, weights: Weights, memory: Tree) -> Weights:
        """The personal model.

        Args:
            weights: The model after personal training.
            memory: The client's state after the last round.

        Returns:
            The weights that the client uses.
        """
        return weights

    def answers(self, model: Model, weights: Weights, local: Examples, draw: torch.Generator) -> Answers:
        """How a client scores classes.

        Args:
            model: The model.
            weights: The client's personal model.
            local: The client's training examples.
            draw: Random generator of this client.

        Returns:
            A function from prepared inputs to class scores. A personalizer may offer several methods by name; the
            default is named "".
        """
        return lambda inputs: {"": model.output(weights, inputs).logits}
