"""FaceNet's triplet loss, between the examples of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedra.losses import LOSSES
from fedra.losses.angle import cosine
from fedra.losses.angular_loss import AngularLoss, Cosines, NonNegative


@LOSSES.add("triplet")
@dataclass(frozen=True, kw_only=True)
class Triplet(AngularLoss):
    """Distances between the examples of a batch (FaceNet, Schroff et al. 2015, arXiv:1503.03832).

    loss_i = mean_p [d_ip - d_in + margin]+,  d = squared distance of unit features,  p of i's class,  n of another

    Class vectors are not used and get no gradient: a classifier head stays as it is, so evaluate by verification. An
    example without another of its class in the batch, or without one of another class, has a loss of 0.

    Args:
        margin: Distance by which negatives should be farther than positives.
        mining: Negatives of each pair (i, p): "semi-hard" takes the nearest n that is farther than p (the farthest n if
            none is), "all" the mean over all n.
        check: Check the labels and that the loss is finite. Set it to False inside vmap and torch.compile.

    Example:
        >>> import torch
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> Triplet(mining="all")(features, weight, labels).shape
        torch.Size([])
    """

    least_classes: ClassVar[int] = 1
    trains_vectors: ClassVar[bool] = False

    margin: NonNegative = 0.2
    mining: Literal["semi-hard", "all"] = "semi-hard"

    def losses(self, batch: Cosines) -> Tensor:
        features, is_real = batch.require("features"), batch.is_real
        distances = 2 - 2 * cosine(features, features)
        alike = batch.labels[:, None] == batch.labels
        itself = torch.eye(len(features), dtype=torch.bool, device=features.device)
        positive = alike & ~itself & is_real[:, None] & is_real
        negative = ~alike & is_real[:, None] & is_real
        usable = positive & negative.any(dim=1, keepdim=True)
        each = self._semi_hard(distances, negative) if self.mining == "semi-hard" else self._all(distances, negative)
        total = torch.where(usable, each, 0.0).sum(dim=1)
        return total / usable.sum(dim=1).clamp(min=1)

    def _semi_hard(self, distances: Tensor, negative: Tensor) -> Tensor:
        """Return (B, B): the hinge of each (anchor, positive) with its semi-hard negative."""
        farther = negative[:, None, :] & (distances[:, None, :] > distances[:, :, None])
        nearest = torch.where(farther, distances[:, None, :], math.inf).amin(dim=2)
        farthest = torch.where(negative, distances, -math.inf).amax(dim=1, keepdim=True)
        chosen = torch.where(farther.any(dim=2), nearest, farthest)
        return (distances - torch.where(chosen.isfinite(), chosen, 0.0) + self.margin).relu()

    def _all(self, distances: Tensor, negative: Tensor) -> Tensor:
        """Return (B, B): the mean hinge of each (anchor, positive) over all negatives."""
        hinges = (distances[:, :, None] - distances[:, None, :] + self.margin).relu()
        total = torch.where(negative[:, None, :], hinges, 0.0).sum(dim=2)
        return total / negative.sum(dim=1, keepdim=True).clamp(min=1)
