"""FedDecorr: keeps a client's features from collapsing into few dimensions.

Shi et al., "Toward understanding and mitigating dimensional collapse in heterogeneous federated learning",
ICLR 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.model import Output
from fedra.core.part import Term
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.registry import Strength


@dataclass(frozen=True)
class Decorrelation(Term):
    """The mean squared entry of the correlation matrix K of a batch's features.

    Args:
        beta: Weight of the term.
    """

    beta: Strength = 0.1
    formula: ClassVar[str] = "beta / d^2 ||K||_F^2,  K = correlation matrix of the d features"
    moves_head: ClassVar[bool] = False

    @property
    def mixes_examples(self) -> bool:
        return True

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        features = output.features
        mask = features.new_ones(len(features)) if view.batch.mask is None else view.batch.mask
        weight = (mask / mask.sum().clamp(min=1)).unsqueeze(1)
        centered = features - (weight * features).sum(dim=0)
        std = ((weight * centered.square()).sum(dim=0) + 1e-8).sqrt()
        standardized = centered / std
        correlation = (weight * standardized).T @ standardized
        return self.beta * correlation.square().mean()


def feddecorr(*, beta: Strength = 0.1) -> Algorithm:
    """Adds a penalty on correlated features to the local objective.

    Args:
        beta: Weight of the penalty; 0 is FedAvg.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [term.name for term in feddecorr(beta=0.05).objective]
        ['cross-entropy', 'decorrelation']
    """
    return fedavg().plus(Decorrelation(beta))
