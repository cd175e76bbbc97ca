"""FedNTD: distils the global model's view of the classes that are not the true one.

Lee et al., "Preservation of the global knowledge by not-true distillation in federated learning", NeurIPS 2022.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.objective import NotTrueDistillation
from fedra.registry import Positive, Strength


def fedntd(*, beta: Strength = 1.0, temperature: Positive = 1.0) -> Algorithm:
    """Adds not-true distillation from the received model to the local objective."""
    return fedavg().plus(NotTrueDistillation(beta, temperature))
