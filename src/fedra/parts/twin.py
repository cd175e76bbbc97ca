"""Twins: weights of its own that a client trains beside the model, in the same local steps.

The model's course is the federation's to the bit, whatever algorithm that is: a twin only looks on. It has the model's
shape and running statistics of its own, never travels, and is stepped by the client's optimizer with fresh state each
round.
"""

from __future__ import annotations

import torch

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ClientState, StepState, TrainsBeside
from fedra.core.model import Weights
from fedra.core.personalizer import Personalizer
from fedra.core.tree import Params, Tree
from fedra.core.view import Client, Local, View


class Twin(Personalizer, ClientState, StepState, TrainsBeside, abstract=True):
    """What twins have in common; a client's begins as the model it receives first."""

    def check(self, algorithm: Algorithm) -> None:
        _ = algorithm.label_loss  # what a twin trains on

    def init_client(self, origin: Weights) -> Tree:
        return origin._asdict()

    def init_steps(self, client: Client) -> Tree:
        twin = client.memory[self.name]
        return {**twin, "optimizer": client.optimizer.init(tree.select(twin["params"], client.trained))}

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {name: value for name, value in local.carried[self.name].items() if name != "optimizer"}, {}

    def step(self, twin: Tree, gradient: Params, buffers: Params, view: View) -> Tree:
        """The twin after one step of the client's optimizer along `gradient`; what was carried is only read."""
        params = tree.clone(twin["params"])
        state = tree.each(twin.get("optimizer", {}), torch.clone)
        state = view.client.optimizer.step(params, gradient, state)
        return {**twin, "params": params, "buffers": buffers, "optimizer": state}
