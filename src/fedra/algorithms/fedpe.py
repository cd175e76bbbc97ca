"""FedPE: the body is averaged, and every client owns the class vectors of its classes.

Niu and Deng, "Federated learning for face recognition with gradient correction", AAAI 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional as F

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.part import StartRule
from fedra.core.sharing import Sharing
from fedra.core.tree import Params
from fedra.losses.angular_loss import AngularLoss
from fedra.parts.margin import HeadMargin


@dataclass(frozen=True)
class UnitRows(StartRule):
    """Class vectors start in random directions of unit length, nearly orthogonal in high dimensions.

    Args:
        rows: Name of the parameter whose rows are the class vectors.
    """

    rows: str = "head.weight"
    formula: ClassVar[str] = "W_c = g / ||g||,  g ~ N(0, I)"

    def init_weights(self, params: Params, draw: torch.Generator) -> Params:
        start = torch.randn(params[self.rows].shape, generator=draw).to(params[self.rows])
        return {**params, self.rows: F.normalize(start, dim=1)}


def fedpe(*, margin: AngularLoss | None = None, fixed: bool = False, kept: bool = False) -> Algorithm:
    """Gives each client the class vectors of its own classes; only the body is averaged.

    Args:
        margin: A margin loss that replaces cross-entropy; None (the default) keeps cross-entropy.
        fixed: Use fixed random class vectors of unit length, which are never trained.
        kept: Let class vectors stay with their clients after the first round: the server never gets them back. No
            server rule can correct them, and privacy and secure aggregation apply.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedpe(fixed=True).sharing.owned
        ('head.',)
    """
    frozen, private = ("head.",) if fixed else (), ("head.",) if kept else ()
    algorithm = fedavg().plus(Sharing(owned=("head.",), frozen=frozen, private=private))
    algorithm = algorithm.plus(UnitRows()) if fixed else algorithm
    return algorithm if margin is None else algorithm.plus(HeadMargin(margin))
