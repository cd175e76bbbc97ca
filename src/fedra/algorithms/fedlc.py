"""FedLC: cross-entropy with larger margins for the classes that a client rarely has.

Zhang et al., "Federated learning with label distribution skew via logits calibration", ICML 2022.
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
class CalibratedCrossEntropy(Term):
    """Cross-entropy on logits lowered by tau n_c^(-1/4), where n_c is the client's number of examples of class c.

    A class without examples has an infinite margin and drops out of the softmax.

    Args:
        tau: Size of the margins; 0 is plain cross-entropy.
    """

    tau: Strength = 1.0
    formula: ClassVar[str] = "mean_i -log softmax(z_i - tau n^(-1/4))[y_i]"
    fits_labels: ClassVar[bool] = True

    @property
    def uses_label_counts(self) -> bool:
        return True

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        counts = view.client.label_counts.to(output.logits.dtype)
        margin = torch.where(counts > 0, self.tau * counts.clamp(min=1) ** -0.25, torch.inf if self.tau else 0.0)
        logits = output.logits - margin
        return view.batch.mean(F.cross_entropy(logits, view.batch.targets, reduction="none"))


def fedlc(*, tau: Strength = 1.0) -> Algorithm:
    """Calibrates the logits of cross-entropy by the client's label counts.

    Args:
        tau: Size of the margins; 0 is FedAvg.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedlc(tau=0.5).objective[0].name
        'calibrated-cross-entropy'
    """
    return fedavg().plus(CalibratedCrossEntropy(tau))
