"""FedNTD: distills the global model's predictions for the classes other than the true one.

Lee et al., "Preservation of the global knowledge by not-true distillation in federated learning", NeurIPS 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import Teachers
from fedra.core.model import Output, Weights
from fedra.core.part import Term
from fedra.core.tree import Params
from fedra.core.view import Client, View
from fedra.parts.objective import kl_divergence
from fedra.registry import Positive, Strength


@dataclass(frozen=True)
class NotTrueDistillation(Term, Teachers):
    """Distillation over the classes other than the true one (FedNTD, Lee et al., NeurIPS 2022).

    Args:
        beta: Weight of the term.
        temperature: Temperature of both softmaxes.
    """

    beta: Strength = 1.0
    temperature: Positive = 1.0
    formula: ClassVar[str] = "beta T^2 KL(softmax(z_g[not y] / T) || softmax(z[not y] / T))"

    def teachers(self, client: Client) -> dict[str, Weights]:
        return {"origin": client.origin}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        others = torch.arange(output.logits.shape[1] - 1, device=output.logits.device)
        columns = others + (others >= view.batch.targets.unsqueeze(1))  # all columns but the true class
        teacher = view.teachers[self.name]["origin"].logits.gather(1, columns)
        divergence = kl_divergence(teacher, output.logits.gather(1, columns), self.temperature)
        return self.beta * self.temperature**2 * view.batch.mean(divergence)


def fedntd(*, beta: Strength = 1.0, temperature: Positive = 1.0) -> Algorithm:
    """Adds not-true distillation from the received model to the local objective.

    Args:
        beta: Weight of the distillation; 0 is FedAvg.
        temperature: Temperature of both softmaxes.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [term.name for term in fedntd(beta=0.5).objective]
        ['cross-entropy', 'not-true-distillation']
    """
    return fedavg().plus(NotTrueDistillation(beta, temperature))
