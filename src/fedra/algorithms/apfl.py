"""APFL: every client mixes the global model with one of its own, in a share that it learns.

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
from fedra.core.portions import aside
from fedra.core.tree import Params, Tree
from fedra.core.view import View
from fedra.parts.twin import Twin


@dataclass(frozen=True)
class MixedTwin(Twin):
    """A personal model that is trained and used mixed with the global one (APFL, Deng et al., arXiv 2003.13461).

    `alpha` is the twin's share, the same for all clients at first; `adaptive` lets every client learn its own by the
    gradient, at the rate of its optimizer, within 0 and 1.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    adaptive: bool = True
    formula: ClassVar[str] = (
        "u = a v + (1 - a) w;  v <- v - lr a grad L(u);  a <- a - lr <v - w, grad L(u)>;  the client uses u"
    )

    def init_client(self, origin: Weights) -> Tree:
        some = next(iter(origin.params.values()))
        return {**origin._asdict(), "alpha": some.new_full((), self.alpha)}

    def beside(self, algorithm: Algorithm, params: Params, view: View) -> None:
        twin = view.carried[self.name]
        alpha, model = twin["alpha"], {name: value.detach() for name, value in params.items()}
        mixed = Weights(_mixed(alpha, twin["params"], model), twin.get("buffers", {}))
        slope, buffers = aside(view, [algorithm.label_loss], mixed)
        after = self.step(twin, tree.scale(slope, alpha), buffers, view)
        if self.adaptive:
            away = tree.subtract(tree.select(twin["params"], slope), model)
            after["alpha"] = (alpha - view.client.optimizer.lr * tree.dot(slope, away)).clamp(0, 1)
        view.log("alpha", after["alpha"])
        view.carry(self.name, after)

    def own(self, weights: Weights, memory: Tree) -> Weights:
        twin = memory.get(self.name)
        if twin is None:
            return weights
        return Weights(_mixed(twin["alpha"], twin["params"], weights.params), twin.get("buffers", {}))


def _mixed(alpha: torch.Tensor, twin: Params, model: Params) -> Params:
    """The mixture over the twin's names."""
    return {name: alpha * value + (1 - alpha) * model[name] for name, value in twin.items()}


def apfl(*, alpha: Annotated[float, Field(ge=0, le=1)] = 0.5, adaptive: bool = True) -> Algorithm:
    """Trains alpha v + (1 - alpha) w in v, the client's own, beside FedAvg's w; `adaptive` learns alpha as well."""
    return fedavg().plus(MixedTwin(alpha, adaptive))
