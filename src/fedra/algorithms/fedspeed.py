"""FedSpeed: sharpness-aware steps on the loss, and FedDyn's regularizer at the unperturbed weights.

Sun et al., "FedSpeed: Larger local interval, less communication round, and higher generalization accuracy",
ICLR 2023, as its public code computes it (the whole step along the perturbed gradient).
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.gradient import AlsoDescend, Perturb
from fedra.parts.objective import DynamicRegularizer
from fedra.registry import Positive, Strength


def fedspeed(*, rho: Strength = 0.1, alpha: Positive = 0.1) -> Algorithm:
    """Takes the loss's gradient at w + rho g / ||g|| and adds the dynamic regularizer's gradient at w.

    Args:
        rho: Radius of the perturbation; 0 takes the gradient at w.
        alpha: Weight of the regularizer's quadratic term.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [rule.name for rule in fedspeed(rho=0.05).gradient]
        ['also-descend', 'perturb']
    """
    return fedavg().plus(AlsoDescend(DynamicRegularizer(alpha)), Perturb(rho))
