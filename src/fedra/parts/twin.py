"""Twins: weights of its own that a client trains beside the model, in the same local steps.

The model's course is the federation's to the bit, whatever algorithm that is: a twin only looks on. It has the model's
shape and running statistics of its own, never travels, and is stepped by the client's optimiser with fresh state each
round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.model import Weights
from fedra.core.personaliser import Personaliser
from fedra.core.portions import aside
from fedra.core.tree import Params, Tree
from fedra.core.view import Client, Local, View
from fedra.registry import Strength


class Twin(Personaliser, abstract=True):
    """What twins have in common; a client's begins as the model it receives first."""

    def init_client(self, origin: Weights) -> Tree:
        return origin._asdict()

    def init_steps(self, client: Client) -> Tree:
        twin = client.memory[self.name]
        return {**twin, "optimizer": client.optimizer.init(tree.select(twin["params"], client.trained))}

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {name: value for name, value in local.carried[self.name].items() if name != "optimizer"}, {}

    def step(self, twin: Tree, gradient: Params, buffers: Params, view: View) -> Tree:
        """The twin after one step of the client's optimiser along `gradient`; what was carried is only read."""
        params = tree.clone(twin["params"])
        state = tree.each(twin.get("optimizer", {}), torch.clone)
        state = view.client.optimizer.step(params, gradient, state)
        return {**twin, "params": params, "buffers": buffers, "optimizer": state}


@dataclass(frozen=True)
class TetheredTwin(Twin):
    """A personal model tied to the received one (Ditto, Li et al., ICML 2021). The larger `strength`, the shorter the
    tether.
    """

    strength: Strength = 0.1
    formula: ClassVar[str] = "v_k minimises L_k(v) + strength/2 ||v - w_g||^2"

    def beside(self, algorithm: Algorithm, params: Params, view: View) -> None:
        twin = view.carried[self.name]
        own = Weights(twin["params"], twin.get("buffers", {}))
        slope, buffers = aside(view, algorithm.objective[:1], own)
        away = tree.subtract(tree.select(own.params, slope), view.client.origin.params)
        view.carry(self.name, self.step(twin, tree.add(slope, away, self.strength), buffers, view))

    def own(self, weights: Weights, memory: Tree) -> Weights:
        twin = memory.get(self.name)
        return weights if twin is None else Weights(twin["params"], twin.get("buffers", {}))


@dataclass(frozen=True)
class MixedTwin(Twin):
    """A personal model that is trained and used mixed with the global one (APFL, Deng et al., arXiv 2003.13461).

    `alpha` is the twin's share, the same for all clients at first; `adaptive` lets every client learn its own by the
    gradient, at the rate of its optimiser, within 0 and 1.
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
        slope, buffers = aside(view, algorithm.objective[:1], mixed)
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
