"""FedGC: FedPE, and a server that corrects the class embeddings of different clients against each other.

Niu and Deng, "Federated learning for face recognition with gradient correction", AAAI 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedra.algorithms.fedpe import fedpe
from fedra.core.algorithm import Algorithm
from fedra.core.ownership import Owners
from fedra.losses.angular_loss import ScaledLoss
from fedra.parts.spread import CrossClientSoftmax, Penalty, Reduction, SpreadOut, through_normalization
from fedra.registry import Positive, Strength


@dataclass(frozen=True)
class CrossClientCosine(Penalty):
    """FedCos: the sum of all similarities between rows of different clients; O(C d), no block needed.

    Raw rows make it unbounded below, so that rows are normalized unless `normalized` is false.
    """

    normalized: bool = True
    reduction: Reduction = "sum"
    formula: ClassVar[str] = "sum_a sum_{b: no owner of a} W_b W'_a"

    def gradient(self, rows: Tensor, owners: Owners, draw: torch.Generator, sample: int | None) -> Tensor:
        unit = F.normalize(rows, dim=1) if self.normalized else rows
        push = unit.sum(dim=0).expand_as(unit).clone()
        for members, related in owners.groups():
            push[members] -= unit[related].sum(dim=0)
        if self.normalized:
            push = through_normalization(push, rows)
        return push / len(rows) if self.reduction == "mean" else push


def fedgc(
    *,
    margin: ScaledLoss | None = None,
    strength: Strength = 20.0,
    lr: Positive = 0.1,
    scale: Positive | None = None,
    self_term: bool = True,
    reduction: Reduction = "sum",
    renormalize: bool = False,
    active_only: bool = False,
    sample: Annotated[int, Field(ge=1)] | None = None,
) -> Algorithm:
    """Private class embeddings, spread apart by a softmax across clients after every round.

    `margin` is the loss of clients and server alike; `scale` is the server's own, if it is to be another.
    """
    penalty = CrossClientSoftmax(margin, scale, self_term, reduction)
    rule = SpreadOut(penalty, strength, lr, renormalize=renormalize, active_only=active_only, sample=sample)
    return fedpe(margin=margin).plus(rule)


def fedcos(
    *, margin: ScaledLoss | None = None, strength: Strength = 1.0, lr: Positive = 0.1, normalized: bool = True
) -> Algorithm:
    """Private class embeddings, spread apart by the mean cosine between those of different clients."""
    penalty = CrossClientCosine(normalized, reduction="mean")
    return fedpe(margin=margin).plus(SpreadOut(penalty, strength, lr))
