"""FedNTD: distils the global model's view of the classes that are not the true one.

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
    """Distillation over the classes that are not the true one (FedNTD, Lee et al., NeurIPS 2022)."""

    beta: Strength = 1.0
    temperature: Positive = 1.0
    formula: ClassVar[str] = "beta T^2 KL(softmax(z_g[not y] / T) || softmax(z[not y] / T))"

    def teachers(self, client: Client) -> dict[str, Weights]:
        return {"origin": client.origin}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        others = torch.arange(output.logits.shape[1] - 1, device=output.logits.device)
        columns = others + (others >= view.batch.targets.unsqueeze(1))  # every column but the true class's
        teacher = view.teachers[self.name]["origin"].logits.gather(1, columns)
        divergence = kl_divergence(teacher, output.logits.gather(1, columns), self.temperature)
        return self.beta * self.temperature**2 * view.batch.mean(divergence)


def fedntd(*, beta: Strength = 1.0, temperature: Positive = 1.0) -> Algorithm:
    """Adds not-true distillation from the received model to the local objective."""
    return fedavg().plus(NotTrueDistillation(beta, temperature))
