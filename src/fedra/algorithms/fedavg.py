"""FedAvg: local SGD on cross-entropy, then the example-weighted mean.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.
"""

from __future__ import annotations

from fedra.core.algorithm import Algorithm
from fedra.parts.combine import WeightedMean
from fedra.parts.objective import CrossEntropy


def fedavg() -> Algorithm:
    """Local SGD on cross-entropy, then the mean of the clients' weights, weighted by examples.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedavg().combine.name
        'weighted-mean'
    """
    return Algorithm(objective=(CrossEntropy(),), combine=WeightedMean())
