"""FedPer: the body is averaged, and every client has a personal head.

Arivazhagan et al., "Federated learning with personalization layers", arXiv 1912.00818.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.sharing import Sharing
from fedra.parts.personalize import KeepPrivate


def fedper(*, private: tuple[str, ...] = ("head.",)) -> Algorithm:
    """Keeps the head private to each client and averages the rest.

    Args:
        private: Name prefixes of the private parameters; () is FedAvg.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedper(private=("head.", "body.3.")).sharing.private
        ('head.', 'body.3.')
    """
    return fedavg().plus(Sharing(private=private), KeepPrivate())
