"""FedGC: FedPE with a server step that separates the class vectors of different clients.

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
    """FedCos: the sum of all similarities between class vectors of different clients, in O(C d).

    Args:
        normalized: Normalize the class vectors first. The penalty is unbounded below on raw ones.
        reduction: "sum" over all class vectors, or "mean".
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
    """Class vectors owned by clients, separated by a softmax across clients after every round.

    Args:
        margin: The margin loss of clients and server; None (the default) is cross-entropy and raw class vectors.
        strength: Weight of the server's penalty.
        lr: Learning rate of the server's step.
        scale: Scale of the server's softmax; None (the default) is the margin loss's own.
        self_term: Keep the part of the gradient that only lengthens a class vector, as equation 5 does. Without it the
            step is the one that the paper analyzes.
        reduction: "sum" the penalty over class vectors, or take the "mean".
        renormalize: Scale every class vector to unit length after the step.
        active_only: Update only class vectors that a client of the round returned.
        sample: Number of class vectors drawn as negatives; None (the default) uses all.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> from fedra.losses import CosFace
        >>> fedgc(margin=CosFace(), strength=10).server[0].strength
        10
    """
    penalty = CrossClientSoftmax(margin, scale, self_term, reduction)
    rule = SpreadOut(penalty, strength, lr, renormalize=renormalize, active_only=active_only, sample=sample)
    return fedpe(margin=margin).plus(rule)


def fedcos(
    *, margin: ScaledLoss | None = None, strength: Strength = 20.0, lr: Positive = 0.1, normalized: bool = True
) -> Algorithm:
    """Class vectors owned by clients, separated by the mean cosine between those of different clients.

    Args:
        margin: The clients' margin loss; None (the default) is cross-entropy.
        strength: Weight of the server's penalty. At 1 the result equals FedPE's to four digits.
        lr: Learning rate of the server's step.
        normalized: Normalize the class vectors in the penalty, which is unbounded below otherwise.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedcos(lr=0.01).server[0].penalty.name
        'cross-client-cosine'
    """
    penalty = CrossClientCosine(normalized, reduction="mean")
    return fedpe(margin=margin).plus(SpreadOut(penalty, strength, lr))
