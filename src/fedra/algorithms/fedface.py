"""FedFace: clients pull features to class vectors that do not move, the server spreads the vectors.

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
    """Class vectors that begin at mean features, stay fixed on clients, and are spread apart by the server.

    It wants a pre-trained start (`model.weights`): before the first round every client sends the mean feature of each
    of its classes under it. One class a client is the paper's case; several work as well.
    """
    spread = SpreadOut(Hinge(threshold, reduction="mean"), strength, lr, steps)
    vectors = Sharing(owned=("head.",), frozen=("head.",))
    return fedavg().plus(vectors, MeanRows(), PositiveHinge(closeness), spread)
