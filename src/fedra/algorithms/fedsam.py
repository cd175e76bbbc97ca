"""FedSAM and FedASAM: sharpness-aware local steps.

Qu et al., "Generalized federated learning via sharpness aware minimization", ICML 2022 (FedSAM);
Caldarola et al., "Improving generalization in federated learning by seeking flat minima", ECCV 2022 (FedASAM).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.parts.gradient import Perturb, Radius
from fedra.registry import Strength


@dataclass(frozen=True)
class WeightRadius(Radius):
    """A ball scaled by the weights themselves (ASAM, Kwon et al., ICML 2021); biases too unless told not to."""

    eta: Strength = 0.0
    bias_scaling: bool = True
    formula: ClassVar[str] = "eps = rho T^2 g / ||T g||,  T = |w| + eta"

    def direction(self, gradient: Params, params: Params, view: View) -> tuple[Params, Tensor]:
        sizes = {name: self._size(name, params[name]) for name in gradient}
        if view.functional:  # a transform may hand out one number for a whole tensor
            scaled = {name: sizes[name] * slope for name, slope in gradient.items()}
        else:
            scaled = {name: slope.mul_(sizes[name]) for name, slope in gradient.items()}
        length = tree.norm(scaled)
        return {name: slope.mul_(sizes[name]) for name, slope in scaled.items()}, length

    def _size(self, name: str, weight: Tensor) -> Tensor:
        if name.endswith("bias") and not self.bias_scaling:
            return torch.ones_like(weight)
        # Without eta the sign of w does not matter, in T^2 g as in ||T g||: the same bits, and no copy of the weights.
        return weight.detach().abs().add_(self.eta) if self.eta else weight.detach()


def fedsam(*, rho: Strength = 0.1) -> Algorithm:
    """Takes every local gradient at w + rho g / ||g||."""
    return fedavg().plus(Perturb(rho))


def fedasam(*, rho: Strength = 1.0, eta: Strength = 0.0, bias_scaling: bool = True) -> Algorithm:
    """FedSAM in a ball scaled by the weights; `eta` widens it, `bias_scaling` false leaves biases unscaled."""
    return fedavg().plus(Perturb(rho, radius=WeightRadius(eta, bias_scaling)))
