"""MOON: model-contrastive federated learning.

Li et al., "Model-contrastive federated learning", CVPR 2021.
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.objective import ModelContrast
from fedra.registry import Positive, Strength


def moon(*, mu: Strength = 0.1, temperature: Positive = 0.5) -> Algorithm:
    """Pulls features toward the global model's and away from those of the client's previous model.

    The paper's projection head is a setting of the model (`model.projection = 256`).

    Args:
        mu: Weight of the contrastive term; 0 is FedAvg.
        temperature: Temperature of the contrastive term.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [term.name for term in moon(mu=1.0).objective]
        ['cross-entropy', 'model-contrast']
    """
    return fedavg().plus(ModelContrast(mu, temperature))
