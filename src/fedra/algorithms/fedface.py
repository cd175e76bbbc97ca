"""FedFace: clients pull features to fixed class vectors, the server pushes the class vectors apart.

Aggarwal, Zhou and Jain, "FedFace: collaborative learning of face recognition model", IJCB 2021.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.sharing import Sharing
from fedra.parts.margin import PositiveHinge
from fedra.parts.spread import Hinge, SpreadOut
from fedra.parts.start import MeanRows
from fedra.registry import Positive, Strength


def fedface(
    *,
    closeness: Annotated[float, Field(gt=-1, le=1)] = 0.9,
    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.3,
    strength: Strength = 10.0,
    lr: Positive = 0.1,
    steps: Annotated[int, Field(ge=1)] = 10,
) -> Algorithm:
    """Class vectors start at mean features, stay fixed on clients, and are pushed apart by the server.

    It needs a pre-trained start (`model.weights`): before the first round every client sends the mean feature of each
    of its classes under that model. In the paper a client has one class; several work as well.

    Args:
        closeness: Cosine between a feature and its class vector from which the client's loss is zero.
        threshold: Cosine between two class vectors above which the server pushes them apart.
        strength: Weight of the server's penalty.
        lr: Learning rate of the server's steps.
        steps: Number of server steps per round.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [part.name for part in fedface().start]
        ['mean-rows']
    """
    spread = SpreadOut(Hinge(threshold, reduction="mean"), strength, lr, steps)
    vectors = Sharing(owned=("head.",), frozen=("head.",))
    return fedavg().plus(vectors, MeanRows(), PositiveHinge(closeness), spread)
