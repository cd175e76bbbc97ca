"""APFL: every client mixes the global model with its personal model, by a weight that it learns.

Deng et al., "Adaptive personalized federated learning", arXiv 2003.13461.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.model import Weights
from fedra.core.step_views import gradient_at
from fedra.core.tree import Params, Tree
from fedra.core.view import View
from fedra.parts.twin import Twin


@dataclass(frozen=True)
class MixedTwin(Twin):
    """A personal model that is trained and used as a mixture with the global one (APFL, Deng et al., arXiv 2003.13461).

    Args:
        alpha: Initial weight of the personal model in the mixture, the same for all clients.
        adaptive: Let every client learn its own `alpha` by gradient steps at its optimizer's learning rate, clamped to
            [0, 1]. False keeps `alpha` constant.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    adaptive: bool = True
    formula: ClassVar[str] = (
        "u = a v + (1 - a) w;  v <- v - lr a grad L(u);  a <- a - lr <v - w, grad L(u)>;  the client uses u"
    )

    def init_client(self, origin: Weights) -> Tree:
        reference = next(iter(origin.params.values()))  # gives device and type
        return {**origin._asdict(), "alpha": reference.new_full((), self.alpha)}

    def train_alongside(self, algorithm: Algorithm, params: Params, view: View) -> None:
        twin = view.carried[self.name]
        alpha, model = twin["alpha"], {name: value.detach() for name, value in params.items()}
        mixed = Weights(_mix(alpha, twin["params"], model), twin.get("buffers", {}))
        gradient, buffers = gradient_at(view, [algorithm.label_loss], mixed)
        updated = self.step(twin, tree.scale(gradient, alpha), buffers, view)
        if self.adaptive:
            difference = tree.subtract(tree.select(twin["params"], gradient), model)
            updated["alpha"] = (alpha - view.client.optimizer.lr * tree.dot(gradient, difference)).clamp(0, 1)
        view.log("alpha", updated["alpha"])
        view.carry(self.name, updated)

    def own(self, weights: Weights, memory: Tree) -> Weights:
        twin = memory.get(self.name)
        if twin is None:
            return weights
        return Weights(_mix(twin["alpha"], twin["params"], weights.params), twin.get("buffers", {}))


def _mix(alpha: torch.Tensor, twin: Params, model: Params) -> Params:
    """Return the mixture of all parameters that the personal model has."""
    return {name: alpha * value + (1 - alpha) * model[name] for name, value in twin.items()}


def apfl(*, alpha: Annotated[float, Field(ge=0, le=1)] = 0.5, adaptive: bool = True) -> Algorithm:
    """Trains alpha v + (1 - alpha) w in the personal model v; the global model w is FedAvg's.

    Args:
        alpha: Initial weight of the personal model in the mixture.
        adaptive: Let every client learn its own `alpha`. False keeps it constant.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> apfl(alpha=0.25).personalize.alpha
        0.25
    """
    return fedavg().plus(MixedTwin(alpha, adaptive))
