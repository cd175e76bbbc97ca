"""FedBABU: only the body is trained and averaged; each client then fine-tunes the whole model for itself.

Oh et al., "FedBABU: Toward enhanced representation for federated image classification", ICLR 2022.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.sharing import Sharing
from fedra.parts.personalize import FineTune, Stages


def fedbabu(*, epochs: Stages = 5, initial_rate: bool = False) -> Algorithm:
    """Freezes the head during the rounds, then fine-tunes all parameters for `epochs` on every client."""
    return fedavg().plus(Sharing(frozen=("head.",)), FineTune(epochs, initial_rate=initial_rate))
