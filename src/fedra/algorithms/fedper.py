"""FedPer: the body is averaged, every client has a head of its own.

Arivazhagan et al., "Federated learning with personalization layers", arXiv 1912.00818.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.sharing import Sharing
from fedra.parts.personalize import KeepPrivate


def fedper(*, private: tuple[str, ...] = ("head.",)) -> Algorithm:
    """Keeps the head, or other layers named by the beginning of their names, with the clients; trains all at once."""
    return fedavg().plus(Sharing(private=private), KeepPrivate())
