"""FedAvg with an optimiser on the server: FedAvgM, FedAdam, FedYogi, FedAdagrad.

Hsu et al., "Measuring the effects of non-identical data distribution", 2019 (FedAvgM);
Reddi et al., "Adaptive federated optimization", ICLR 2021 (FedAdam, FedYogi, FedAdagrad).
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.server import ServerAdagrad, ServerAdam, ServerSgd, ServerYogi
from fedra.registry import Positive, Share


def fedavgm(*, lr: Positive = 1.0, momentum: Share = 0.9) -> Algorithm:
    """The server steps along the averaged change with momentum."""
    return fedavg().plus(ServerSgd(lr, momentum))


def fedadam(*, lr: Positive = 0.01, beta1: Share = 0.9, beta2: Share = 0.99, tau: Positive = 1e-3) -> Algorithm:
    """The server feeds the averaged change to Adam."""
    return fedavg().plus(ServerAdam(lr, beta1, beta2, tau))


def fedyogi(*, lr: Positive = 0.01, beta1: Share = 0.9, beta2: Share = 0.99, tau: Positive = 1e-3) -> Algorithm:
    """The server feeds the averaged change to Yogi."""
    return fedavg().plus(ServerYogi(lr, beta1, beta2, tau))


def fedadagrad(*, lr: Positive = 0.01, beta1: Share = 0.0, tau: Positive = 1e-3) -> Algorithm:
    """The server feeds the averaged change to Adagrad."""
    return fedavg().plus(ServerAdagrad(lr, beta1, tau))
