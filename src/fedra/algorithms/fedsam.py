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
    """A ball scaled by the magnitude of the weights (ASAM, Kwon et al., ICML 2021).

    Args:
        eta: Added to the magnitude of every weight.
        bias_scaling: Scale biases too; False leaves them unscaled.
    """

    eta: Strength = 0.0
    bias_scaling: bool = True
    formula: ClassVar[str] = "eps = rho T^2 g / ||T g||,  T = |w| + eta"

    def direction(self, gradient: Params, params: Params, view: View) -> tuple[Params, Tensor]:
        sizes = {name: self._size(name, params[name]) for name in gradient}
        if view.functional:  # under vmap a tensor may be expanded from one number, which in-place ops cannot write
            scaled = {name: sizes[name] * grad for name, grad in gradient.items()}
        else:
            scaled = {name: grad.mul_(sizes[name]) for name, grad in gradient.items()}
        length = tree.norm(scaled)
        return {name: grad.mul_(sizes[name]) for name, grad in scaled.items()}, length

    def _size(self, name: str, weight: Tensor) -> Tensor:
        if name.endswith("bias") and not self.bias_scaling:
            return torch.ones_like(weight)
        # With eta = 0 the sign of w cancels in T^2 g and in ||T g||: bitwise equal, without a copy of the weights.
        return weight.detach().abs().add_(self.eta) if self.eta else weight.detach()


def fedsam(*, rho: Strength = 0.1) -> Algorithm:
    """Takes every local gradient at w + rho g / ||g||.

    Args:
        rho: Radius of the perturbation; 0 is FedAvg.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedsam(rho=0.05).gradient[0].rho
        0.05
    """
    return fedavg().plus(Perturb(rho))


def fedasam(*, rho: Strength = 1.0, eta: Strength = 0.0, bias_scaling: bool = True) -> Algorithm:
    """FedSAM with a perturbation scaled by the magnitude of the weights.

    Args:
        rho: Radius of the perturbation; 0 is FedAvg.
        eta: Added to the magnitude of every weight.
        bias_scaling: Scale biases too; False leaves them unscaled.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedasam(eta=0.01).gradient[0].radius.eta
        0.01
    """
    return fedavg().plus(Perturb(rho, radius=WeightRadius(eta, bias_scaling)))
