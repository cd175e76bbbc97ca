"""FedSpeed: sharpness-aware steps on the loss, and FedDyn's regularizer at the unperturbed weights.

Sun et al., "FedSpeed: Larger local interval, less communication round, and higher generalization accuracy",
ICLR 2023, as its public code runs (the whole step taken along the perturbed gradient).
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.gradient import AlsoDescend, Perturb
from fedra.parts.objective import DynamicRegularizer
from fedra.registry import Positive, Strength


def fedspeed(*, rho: Strength = 0.1, alpha: Positive = 0.1) -> Algorithm:
    """Takes the loss's gradient at w + rho g / ||g|| and adds the dynamic regularizer's gradient at w."""
    return fedavg().plus(AlsoDescend(DynamicRegularizer(alpha)), Perturb(rho))
