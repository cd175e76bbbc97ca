"""FedRS: a restricted softmax that scales down the classes that a client lacks.

Li and Zhan, "FedRS: Federated learning with restricted softmax for label distribution non-IID data", KDD 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.model import Output
from fedra.core.part import Term
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.registry import Strength


@dataclass(frozen=True)
class RestrictedCrossEntropy(Term):
    """Cross-entropy with the logits of classes that the client lacks scaled by alpha.

    Args:
        alpha: Scale of those logits; 1 is plain cross-entropy.
    """

    alpha: Strength = 0.5
    formula: ClassVar[str] = "mean_i -log softmax(a z_i)[y_i],  a_c = 1 if n_c > 0 else alpha"
    fits_labels: ClassVar[bool] = True

    @property
    def uses_label_counts(self) -> bool:
        return True

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        logits = torch.where(view.client.label_counts > 0, output.logits, self.alpha * output.logits)
        return view.batch.mean(F.cross_entropy(logits, view.batch.targets, reduction="none"))


def fedrs(*, alpha: Strength = 0.5) -> Algorithm:
    """Cross-entropy with a restricted softmax.

    Args:
        alpha: Scale of the logits of classes that the client lacks; 1 is FedAvg.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedrs(alpha=0.9).objective[0].alpha
        0.9
    """
    return fedavg().plus(RestrictedCrossEntropy(alpha))
