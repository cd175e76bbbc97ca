"""Ditto: every client trains a personal model that is regularized toward the global model.

Li et al., "Ditto: Fair and robust federated learning through personalization", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.model import Weights
from fedra.core.step_views import gradient_at
from fedra.core.tree import Params, Tree
from fedra.core.view import View
from fedra.parts.twin import Twin
from fedra.registry import Strength


@dataclass(frozen=True)
class TetheredTwin(Twin):
    """A personal model with a proximal term toward the received model (Ditto, Li et al., ICML 2021).

    Args:
        strength: Weight of the proximal term, the paper's lambda. Larger values keep the personal model closer to the
            global one.
    """

    strength: Strength = 0.1
    formula: ClassVar[str] = "v_k minimizes L_k(v) + strength/2 ||v - w_g||^2"

    def train_alongside(self, algorithm: Algorithm, params: Params, view: View) -> None:
        twin = view.carried[self.name]
        personal = Weights(twin["params"], twin.get("buffers", {}))
        gradient, buffers = gradient_at(view, [algorithm.label_loss], personal)
        difference = tree.subtract(tree.select(personal.params, gradient), view.client.origin.params)
        view.carry(self.name, self.step(twin, tree.add(gradient, difference, self.strength), buffers, view))

    def own(self, weights: Weights, memory: Tree) -> Weights:
        twin = memory.get(self.name)
        return weights if twin is None else Weights(twin["params"], twin.get("buffers", {}))


def ditto(*, strength: Strength = 0.1) -> Algorithm:
    """Trains a personal model with a proximal term toward the received model; the global model is FedAvg's.

    To use another algorithm's global model, add Ditto to it: `name = "fedprox"`, `plus = ["ditto"]`.

    Args:
        strength: Weight of the proximal term strength/2 ||v - w_g||^2, the paper's lambda. 0 disables it.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> ditto(strength=0.5).personalize.strength
        0.5
    """
    return fedavg().plus(TetheredTwin(strength))
