"""FedSMOO: FedSpeed whose perturbations are pulled toward one that all clients share.

Sun et al., "Dynamic regularized sharpness aware minimization in federated learning: approaching global consistency and
smooth landscape", ICML 2023 (arXiv 2305.11584), as its authors' public code computes it: the server's perturbation is
the normalized mean of the clients' dual variables, without their last perturbations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ClientState, CollectsUploads, ComparesWithOrigin, ServerState, StepState
from fedra.core.model import Weights
from fedra.core.part import GradientFunction, GradientRule
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Client, Local, Population, Server, Upload, View
from fedra.parts.gradient import TINY, AlsoDescend
from fedra.parts.objective import DynamicRegularizer
from fedra.registry import Positive, Strength


@dataclass(frozen=True)
class SharedPerturb(
    GradientRule, ClientState, ServerState, CollectsUploads, StepState, ComparesWithOrigin, name="shared-perturb"
):
    """Takes the inner gradient at perturbed weights, and makes the clients' perturbations agree by dual variables.

    A client keeps its dual variable u_k from round to round; the server sends the shared perturbation s. Parameters
    without a shared value (private layers, rows owned by classes) are perturbed without correction.

    Args:
        rho: Radius of the perturbation; 0 does not perturb.
    """

    rho: Strength = 0.1
    formula: ClassVar[str] = (
        "g(w) -> g(w + eps),  eps = rho (g - u_k - s) / ||g - u_k - s||;  u_k <- u_k + eps - s at every step;  "
        "s <- rho m / ||m||,  m = mean_S u_k"
    )

    def init_client(self, origin: Weights) -> Tree:
        return {"dual": tree.zeros_like(origin.params)}

    def init_server(self, weights: Weights) -> Tree:
        return {"shared": tree.zeros_like(weights.params)}

    def broadcast(self, memory: Tree) -> Tree:
        return memory

    def init_steps(self, client: Client) -> Tree:
        return {"dual": client.memory[self.name]["dual"]}

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        dual, shared = view.carried[self.name]["dual"], view.client.received[self.name]["shared"]
        gradient = inner(params)
        with torch.no_grad():
            direction = {
                name: grad - dual[name] - shared[name] if name in shared else grad for name, grad in gradient.items()
            }
            perturbation = tree.scale(direction, self.rho / tree.norm(direction).clamp(min=TINY))
            moved = {n: dual[n] + step - shared[n] for n, step in perturbation.items() if n in shared}
        view.carry(self.name, {"dual": {**dual, **moved}})
        return inner(tree.add(params, perturbation))

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        dual, shared = local.carried[self.name]["dual"], local.client.received[self.name]["shared"]
        sent = set(shared) & set(local.client.trained)
        return {"dual": dual}, {"dual": tree.select(dual, [name for name in local.drift if name in sent])}

    def collect(self, total: Tree, upload: Upload) -> Tree:
        return self.collect_stack(total, Uploads.of(upload))

    def collect_stack(self, total: Tree, uploads: Uploads) -> Tree:
        sent = uploads.extras[self.name]["dual"]
        return {"dual": tree.accumulate_rows(total.get("dual", {}), sent, [1.0] * len(uploads))}

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        scaled = tree.scale(total["dual"], self.rho / tree.norm(total["dual"]).clamp(min=TINY))
        return server.with_memory(self.name, {"shared": {**before.memory[self.name]["shared"], **scaled}})


def fedsmoo(*, rho: Strength = 0.1, alpha: Positive = 0.1) -> Algorithm:
    """Adds the dynamic regularizer's gradient at w to the loss's gradient at w + eps, with eps close to a shared one.

    Args:
        rho: Radius of the perturbation; 0 takes the gradient at w.
        alpha: Weight of the regularizer's quadratic term.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [rule.name for rule in fedsmoo(rho=0.05).gradient]
        ['also-descend', 'shared-perturb']
    """
    return fedavg().plus(AlsoDescend(DynamicRegularizer(alpha)), SharedPerturb(rho))
