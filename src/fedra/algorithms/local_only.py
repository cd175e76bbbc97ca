"""Local training alone, without any exchange: the baseline of personalized methods.

The first row of table 5 of Lee et al., "FedSOL: Stabilized orthogonal learning with proximal restrictions in federated
learning", CVPR 2024 (arXiv 2308.12532).
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.sharing import Sharing
from fedra.parts.personalize import KeepPrivate


def local_only() -> Algorithm:
    """Every client trains a personal model from the same start; nothing is ever sent.

    A round is `local.epochs` epochs on every client of the cohort: with `cohort.fraction = 1`, 40 rounds of 5 epochs
    are 200 epochs, and `local.lr_decay` acts from round to round as in any run. The global model and its accuracy never
    change; the metric to compare is `personalized_accuracy`.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> local_only().sharing.private
        ('',)
    """
    return fedavg().plus(Sharing(private=("",)), KeepPrivate())
