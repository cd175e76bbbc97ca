"""Ditto: beside the global model every client trains one of its own, tied to the global one.

Li et al., "Ditto: Fair and robust federated learning through personalization", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.model import Weights
from fedra.core.portions import aside
from fedra.core.tree import Params, Tree
from fedra.core.view import View
from fedra.parts.twin import Twin
from fedra.registry import Strength


@dataclass(frozen=True)
class TetheredTwin(Twin):
    """A personal model tied to the received one (Ditto, Li et al., ICML 2021). The larger `strength`, the shorter the
    tether.
    """

    strength: Strength = 0.1
    formula: ClassVar[str] = "v_k minimizes L_k(v) + strength/2 ||v - w_g||^2"

    def beside(self, algorithm: Algorithm, params: Params, view: View) -> None:
        twin = view.carried[self.name]
        own = Weights(twin["params"], twin.get("buffers", {}))
        slope, buffers = aside(view, [algorithm.label_loss], own)
        away = tree.subtract(tree.select(own.params, slope), view.client.origin.params)
        view.carry(self.name, self.step(twin, tree.add(slope, away, self.strength), buffers, view))

    def own(self, weights: Weights, memory: Tree) -> Weights:
        twin = memory.get(self.name)
        return weights if twin is None else Weights(twin["params"], twin.get("buffers", {}))


def ditto(*, strength: Strength = 0.1) -> Algorithm:
    """Trains a personal model at strength/2 times its squared distance to the received one; the global one is FedAvg's.

    `strength` is the paper's lambda. Any other method's global model takes FedAvg's place: `name = "fedprox"`,
    `plus = ["ditto"]`.
    """
    return fedavg().plus(TetheredTwin(strength))
