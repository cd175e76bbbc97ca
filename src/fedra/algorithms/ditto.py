"""Ditto: beside the global model every client trains one of its own, tied to the global one.

Li et al., "Ditto: Fair and robust federated learning through personalization", ICML 2021.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.twin import TetheredTwin
from fedra.registry import Strength


def ditto(*, strength: Strength = 0.1) -> Algorithm:
    """Trains a personal model at strength/2 times its squared distance to the received one; the global one is FedAvg's.

    `strength` is the paper's lambda. Any other method's global model takes FedAvg's place: `name = "fedprox"`,
    `plus = ["ditto"]`.
    """
    return fedavg().plus(TetheredTwin(strength))
