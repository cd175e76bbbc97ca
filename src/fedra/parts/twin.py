"""Twins: personal models that a client trains alongside the model, in the same local steps.

The model's training is bitwise the same with and without a twin, whatever the algorithm. A twin has the shape of the
model and its own running statistics, is never sent, and is updated by the client's optimizer with a fresh state in
each round.
"""

from __future__ import annotations

import torch

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ClientState, StepState, TrainsAlongside
from fedra.core.model import Weights
from fedra.core.personalizer import Personalizer
from fedra.core.tree import Params, Tree
from fedra.core.view import Client, Local, View


class Twin(Personalizer, ClientState, StepState, TrainsAlongside, abstract=True):
    """Base class of personal models trained alongside the model; they start as the first received model.

    A subclass defines `train_alongside`, which takes a step, and `own`, which returns the personal model.

    Example:
        >>> from fedra.algorithms.ditto import TetheredTwin
        >>> issubclass(TetheredTwin, Twin)
        True
    """

    def check(self, algorithm: Algorithm) -> None:
        _ = algorithm.label_loss  # raises an error if there is no loss to train the twin on

    def init_client(self, origin: Weights) -> Tree:
        return origin._asdict()

    def init_steps(self, client: Client) -> Tree:
        twin = client.memory[self.name]
        return {**twin, "optimizer": client.optimizer.init(tree.select(twin["params"], client.trained))}

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {name: value for name, value in local.carried[self.name].items() if name != "optimizer"}, {}

    def step(self, twin: Tree, gradient: Params, buffers: Params, view: View) -> Tree:
        """Return the twin after one step of the client's optimizer; the given state is not changed.

        Args:
            twin: The twin's state: its parameters, buffers and optimizer.
            gradient: The gradient to step along.
            buffers: The buffers after the step.
            view: What the part can read of the local step.

        Returns:
            The new state.
        """
        params = tree.clone(twin["params"])
        state = tree.each(twin.get("optimizer", {}), torch.clone)
        state = view.client.optimizer.step(params, gradient, state)
        return {**twin, "params": params, "buffers": buffers, "optimizer": state}
