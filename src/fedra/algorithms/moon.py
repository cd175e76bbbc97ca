"""MOON: model-contrastive federated learning.

Li et al., "Model-contrastive federated learning", CVPR 2021.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.objective import ModelContrast
from fedra.registry import Positive, Strength


def moon(*, mu: Strength = 0.1, temperature: Positive = 0.5) -> Algorithm:
    """Pulls features toward the global model's and away from the client's previous model's.

    The paper's projection head is a setting of the model (`model.projection = 256`).
    """
    return fedavg().plus(ModelContrast(mu, temperature))
