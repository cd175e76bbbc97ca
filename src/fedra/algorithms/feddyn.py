"""FedDyn: a dynamic regulariser that makes local optima agree with the global one.

Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.model import Output, Weights
from fedra.core.part import Term
from fedra.core.tree import Params, Tree
from fedra.core.view import Local, Population, Server, Upload, View
from fedra.registry import Positive


@dataclass(frozen=True)
class DynamicRegulariser(Term):
    """A linear term that each client learns, and a quadratic one; the server corrects the mean by h / alpha.

    The correction follows any combine rule: it moves the server's parameters and averages nothing itself.
    """

    alpha: Positive = 0.1
    formula: ClassVar[str] = (
        "-<l_k, w> + alpha/2 ||w - w_g||^2;  l_k <- l_k - alpha (w_k - w_g);  "
        "h <- h - alpha/N sum_S (w_k - w_g);  w_g <- mean - h / alpha"
    )
    closed_form: ClassVar[bool] = True

    def init_client(self, origin: Weights) -> Tree:
        return {"slope": tree.zeros_like(origin.params)}

    def init_server(self, weights: Weights) -> Tree:
        return {"slope": tree.zeros_like(weights.params)}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        drift = tree.subtract(params, view.client.origin.params)
        return 0.5 * self.alpha * tree.dot(drift, drift) - tree.dot(view.client.memory[self.name]["slope"], params)

    def add_gradient(self, gradient: Params, params: Params, view: View) -> None:
        origin, own = view.client.origin.params, view.client.memory[self.name]["slope"]
        for name, slope in gradient.items():
            slope.add_(params[name].detach(), alpha=self.alpha).sub_(origin[name], alpha=self.alpha).sub_(own[name])

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {"slope": tree.add(local.client.memory[self.name]["slope"], local.drift, -self.alpha)}, {}

    def collect(self, total: Tree, upload: Upload) -> Tree:
        return {"drift": tree.accumulate(total.get("drift", {}), upload.delta)}

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        slope = tree.add(before.memory[self.name]["slope"], total["drift"], -self.alpha / population.clients)
        corrected = tree.add(server.weights.params, slope, -1 / self.alpha)
        return server.with_params(corrected).with_memory(self.name, {"slope": slope})


def feddyn(*, alpha: Positive = 0.1) -> Algorithm:
    """Adds the dynamic regulariser to the local objective and its correction to the server."""
    return fedavg().plus(DynamicRegulariser(alpha))
