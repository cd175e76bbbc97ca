"""FedSAM and FedASAM: sharpness-aware local steps.

Qu et al., "Generalized federated learning via sharpness aware minimization", ICML 2022 (FedSAM);
Caldarola et al., "Improving generalization in federated learning by seeking flat minima", ECCV 2022 (FedASAM).
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.gradient import Perturb, WeightRadius
from fedra.registry import Strength


def fedsam(*, rho: Strength = 0.1) -> Algorithm:
    """Takes every local gradient at w + rho g / ||g||."""
    return fedavg().plus(Perturb(rho))


def fedasam(*, rho: Strength = 1.0, eta: Strength = 0.0, bias_scaling: bool = True) -> Algorithm:
    """FedSAM in a ball scaled by the weights; `eta` widens it, `bias_scaling` false leaves biases unscaled."""
    return fedavg().plus(Perturb(rho, radius=WeightRadius(eta, bias_scaling)))
