"""FedProx: FedAvg whose local objective is tied to the received weights.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.objective import Proximal
from fedra.registry import Strength


def fedprox(*, mu: Strength = 1.0) -> Algorithm:
    """Adds mu/2 ||w - w_g||^2 to the local objective."""
    return fedavg().plus(Proximal(mu))
