"""FedDyn: a dynamic regularizer that makes local optima agree with the global one.

Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.objective import DynamicRegularizer
from fedra.registry import Positive


def feddyn(*, alpha: Positive = 0.1) -> Algorithm:
    """Adds a dynamic regularizer to the local objective and its correction to the server.

    Args:
        alpha: Weight of the quadratic term. The server's correction is divided by it.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [term.name for term in feddyn(alpha=0.01).objective]
        ['cross-entropy', 'dynamic-regularizer']
    """
    return fedavg().plus(DynamicRegularizer(alpha))
