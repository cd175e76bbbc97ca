"""FedGC: FedPE, and a server that corrects the class embeddings of different clients against each other.

Niu and Deng, "Federated learning for face recognition with gradient correction", AAAI 2022.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedra.algorithms.fedpe import fedpe
from fedra.core.algorithm import Algorithm
from fedra.losses.angular_loss import ScaledLoss
from fedra.parts.spread import CrossClientCosine, CrossClientSoftmax, SpreadOut
from fedra.registry import Positive, Strength


def fedgc(
    *,
    margin: ScaledLoss | None = None,
    strength: Strength = 20.0,
    lr: Positive = 0.1,
    scale: Positive | None = None,
    self_term: bool = True,
    reduction: Literal["sum", "mean"] = "sum",
    renormalise: bool = False,
    active_only: bool = False,
    sample: Annotated[int, Field(ge=1)] | None = None,
) -> Algorithm:
    """Private class embeddings, spread apart by a softmax across clients after every round.

    `margin` is the loss of clients and server alike; `scale` is the server's own, if it is to be another.
    """
    penalty = CrossClientSoftmax(margin, scale, self_term, reduction)
    rule = SpreadOut(penalty, strength, lr, renormalise=renormalise, active_only=active_only, sample=sample)
    return fedpe(margin=margin).plus(rule)


def fedcos(
    *, margin: ScaledLoss | None = None, strength: Strength = 1.0, lr: Positive = 0.1, normalised: bool = True
) -> Algorithm:
    """Private class embeddings, spread apart by the mean cosine between those of different clients."""
    penalty = CrossClientCosine(normalised, reduction="mean")
    return fedpe(margin=margin).plus(SpreadOut(penalty, strength, lr))
