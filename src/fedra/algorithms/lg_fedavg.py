"""LG-FedAvg: the head is averaged, every client has a body of its own.

Liang et al., "Think locally, act globally: federated learning with local and global representations", arXiv 2001.01523.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.sharing import Sharing
from fedra.parts.personalize import KeepPrivate


def lg_fedavg(*, private: tuple[str, ...] = ("body.",)) -> Algorithm:
    """Keeps the body, or those of its layers that `private` names by their beginnings, with the clients."""
    return fedavg().plus(Sharing(private=private), KeepPrivate())
