"""FedRep: every client fits a head of its own first, then the body that all share.

Collins et al., "Exploiting shared representations for personalized federated learning", ICML 2021.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.part import Sharing
from fedra.parts.personalise import KeepPrivate
from fedra.parts.turns import HeadThenBody


def fedrep(*, head_epochs: Annotated[int, Field(ge=1)] = 1) -> Algorithm:
    """Keeps heads private; of `local.epochs` the first `head_epochs` train the head alone, the others the body alone.

    `local.epochs` must therefore be larger than `head_epochs`.
    """
    return fedavg().plus(Sharing(private=("head.",)), HeadThenBody(head_epochs), KeepPrivate())
