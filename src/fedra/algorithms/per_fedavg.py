"""Per-FedAvg: a global model from which a client's own is one step away.

Fallah et al., "Personalized federated learning with theoretical guarantees: a model-agnostic meta-learning approach",
NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.part import GradientFunction, GradientRule
from fedra.core.portions import halves, showing
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.parts.personalize import FineTune, Stages
from fedra.registry import Positive


@dataclass(frozen=True)
class MetaStep(GradientRule):
    """Takes the gradient where a plain step on other examples would lead (Per-FedAvg, Fallah et al., NeurIPS 2020).

    The batch's first, third, fifth ... examples are A, the others B; a single example is both. The step on A goes
    `inner_lr` far, by default as far as the optimizer's. Exactly, the gradient is then multiplied by I - a H_A(w):
    `order` "first" leaves that out, "hessian-free" takes the product with the Hessian from two more gradients on A,
    `delta` to either side.
    """

    order: Literal["first", "hessian-free"] = "first"
    inner_lr: Positive | None = None
    delta: Positive = 1e-3
    formula: ClassVar[str] = (
        "g(w) -> u = g_B(w - a g_A(w))  [hessian-free: u - a (g_A(w + delta u) - g_A(w - delta u)) / (2 delta)]"
    )

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        first, second = halves(view.batch)
        rate = view.client.optimizer.lr if self.inner_lr is None else self.inner_lr
        with showing(view, first):
            ahead = tree.add(params, inner(params), -rate)
        with showing(view, second):
            slope = inner(ahead)
        if self.order == "first":
            return slope
        with showing(view, first):
            above = inner(tree.add(params, slope, self.delta))
            below = inner(tree.add(params, slope, -self.delta))
        return tree.add(slope, tree.subtract(above, below), -rate / (2 * self.delta))


def per_fedavg(
    *,
    order: Literal["first", "hessian-free"] = "first",
    inner_lr: Positive | None = None,
    delta: Positive = 1e-3,
    epochs: Stages = 1,
) -> Algorithm:
    """Descends the loss after one plain step of `inner_lr`; a client then takes such steps for `epochs`.

    One half of every batch takes the step, the other half says how good it was. Without `inner_lr` the step is as
    long as the local optimizer's, which decays with it; the outer step is that optimizer's own, momentum and weight
    decay included. Clients make their models without either.
    """
    own = FineTune(epochs, lr=inner_lr, plain=True)
    return fedavg().plus(MetaStep(order, inner_lr, delta), own)
