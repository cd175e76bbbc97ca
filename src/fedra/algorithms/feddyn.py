"""FedDyn: a dynamic regularizer that makes local optima agree with the global one.

Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.objective import DynamicRegularizer
from fedra.registry import Positive


def feddyn(*, alpha: Positive = 0.1) -> Algorithm:
    """Adds the dynamic regularizer to the local objective and its correction to the server."""
    return fedavg().plus(DynamicRegularizer(alpha))
