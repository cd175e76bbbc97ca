"""FedBABU: only the body is trained and averaged; after the last round every client fine-tunes the whole model.

Oh et al., "FedBABU: Toward enhanced representation for federated image classification", ICLR 2022.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.sharing import Sharing
from fedra.parts.personalize import FineTune, Stages


def fedbabu(*, epochs: Stages = 5, initial_rate: bool = False) -> Algorithm:
    """Freezes the head during the rounds, then fine-tunes all parameters on every client.

    Args:
        epochs: Epochs of fine-tuning. Several numbers, such as (1, 5), are each trained from the global model and
            evaluated.
        initial_rate: Fine-tune at the learning rate of the first round. False (the default) uses that of the last.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedbabu(epochs=1).sharing.frozen
        ('head.',)
    """
    return fedavg().plus(Sharing(frozen=("head.",)), FineTune(epochs, initial_rate=initial_rate))
