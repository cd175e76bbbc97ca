"""FedPE: the body is averaged, every client's class embeddings are its own; optionally fixed random ones.

Niu and Deng, "Federated learning for face recognition with gradient correction", AAAI 2022.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.part import Sharing
from fedra.losses.angular_loss import AngularLoss
from fedra.parts.margin import MarginHead
from fedra.parts.spread import UnitRows


def fedpe(*, margin: AngularLoss | None = None, fixed: bool = False) -> Algorithm:
    """Gives each client the rows of its own classes; `margin` replaces softmax, `fixed` rows are never trained."""
    algorithm = fedavg().plus(Sharing(owned=("head.",), frozen=("head.",) if fixed else ()))
    algorithm = algorithm.plus(UnitRows()) if fixed else algorithm
    return algorithm if margin is None else algorithm.plus(MarginHead(margin))
