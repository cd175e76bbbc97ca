"""Losses on the class vectors as centers: CoCo, UniformFace."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedra.losses import LOSSES
from fedra.losses.angular_loss import AngularLoss, Cosines, NonNegative, Positive
from fedra.losses.curriculum import SphereFace


@LOSSES.add("coco")
@dataclass(frozen=True, kw_only=True)
class CoCo(AngularLoss):
    """Softmax of cosines at the smallest scale that can fit (congenerous cosine, Liu et al. 2017, arXiv:1710.00870).

    logit_j = a cos t_j,  a = 1/2 ln((C - 1) / (e^tolerance - 1))

    At this scale an example that coincides with its class vector and is opposite to all others has a loss of
    `tolerance`.

    Args:
        tolerance: The smallest loss that an example can have.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> CoCo(tolerance=1e-3)(features, weight, labels).shape
        torch.Size([])
    """

    tolerance: Positive = 1e-4

    def fixed_scale(self, classes: int) -> float:
        """Return the scale for a number of classes."""
        return 0.5 * math.log((classes - 1) / math.expm1(self.tolerance))

    def scaling(self, batch: Cosines) -> float:
        return self.fixed_scale(batch.values.shape[1])


@LOSSES.add("uniformface")
@dataclass(frozen=True, kw_only=True)
class UniformFace(SphereFace):
    """SphereFace with class centers that repel each other (Duan et al. 2019, CVPR, "UniformFace").

    loss = SphereFace + repulsion / (C (C - 1)) sum_(i != j) 1 / (1 + d_ij),  d = distance of the unit class vectors

    The class vectors are the centers here; the authors keep running means of features.

    State: `step`, as in SphereFace.

    Args:
        repulsion: Weight of the potential energy of the centers.
        scale: Scale s of the logits, in addition to the feature's norm.
        margin: Factor m of the angle.
        lambda_base: Initial lambda.
        lambda_decay: Decay of lambda per step.
        lambda_power: Exponent of the decay.
        lambda_min: Smallest lambda.
        grad_mode: "exact" differentiates the margin function. "straight-through" uses its value with the gradient of
            the plain cosine, as several public implementations do.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = UniformFace()
        >>> loss(features, weight, labels, state=loss.init_state(weight)).shape
        torch.Size([])
    """

    repulsion: NonNegative = 1.0

    def losses(self, batch: Cosines) -> Tensor:
        return super().losses(batch) + self.repulsion * potential_energy(batch.require("vectors"))


def potential_energy(vectors: Tensor) -> Tensor:
    """Return the mean of 1 / (1 + distance) over all pairs of different unit vectors."""
    unit = F.normalize(vectors.float() if vectors.dtype in (torch.float16, torch.bfloat16) else vectors, dim=1)
    count = len(unit)
    # By products, in the memory of a matrix of classes: differences of all pairs would take that times their length.
    squared = 2 - 2 * unit @ unit.T
    itself = torch.eye(count, dtype=torch.bool, device=unit.device)
    distances = squared.masked_fill(itself, 1.0).clamp(min=1e-12).sqrt()
    return ((1 / (1 + distances)).sum() - count / 2) / max(count * (count - 1), 1)
