"""FedProx: FedAvg with a proximal term toward the received weights.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ComparesWithOrigin
from fedra.core.model import Output
from fedra.core.part import Term
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.registry import Strength


@dataclass(frozen=True)
class Proximal(Term, ComparesWithOrigin):
    """Half of mu times the squared distance to the received weights (FedProx, Li et al., MLSys 2020).

    Args:
        mu: Weight of the term.
    """

    mu: Strength = 1.0
    formula: ClassVar[str] = "mu/2 ||w - w_g||^2"
    closed_form: ClassVar[bool] = True

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        drift = tree.subtract(tree.select(params, view.client.trained), view.client.origin.params)
        return 0.5 * self.mu * tree.dot(drift, drift)

    def add_gradient(self, gradient: Params, params: Params, view: View) -> None:
        origin = view.client.origin.params
        for name, grad in gradient.items():
            grad.add_(params[name].detach(), alpha=self.mu).sub_(origin[name], alpha=self.mu)


def fedprox(*, mu: Strength = 1.0) -> Algorithm:
    """Adds mu/2 ||w - w_g||^2 to the local objective.

    Args:
        mu: Weight of the proximal term; 0 is FedAvg.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [term.name for term in fedprox(mu=0.1).objective]
        ['cross-entropy', 'proximal']
    """
    return fedavg().plus(Proximal(mu))
