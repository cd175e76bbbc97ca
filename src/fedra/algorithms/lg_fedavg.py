"""LG-FedAvg: the head is averaged, and every client has a personal body.

Liang et al., "Think locally, act globally: federated learning with local and global representations", arXiv 2001.01523.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.sharing import Sharing
from fedra.parts.personalize import KeepPrivate


def lg_fedavg(*, private: tuple[str, ...] = ("body.",)) -> Algorithm:
    """Keeps the body, or some of its layers, private to each client and averages the rest.

    Args:
        private: Name prefixes of the private parameters; () is FedAvg.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> lg_fedavg(private=("body.0.",)).sharing.private
        ('body.0.',)
    """
    return fedavg().plus(Sharing(private=private), KeepPrivate())
