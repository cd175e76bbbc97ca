"""Per-FedAvg: a global model from which a client's own is one step away.

Fallah et al., "Personalized federated learning with theoretical guarantees: a model-agnostic meta-learning approach",
NeurIPS 2020.
"""

from __future__ import annotations

from typing import Literal

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.meta import MetaStep
from fedra.parts.personalise import FineTune, Stages
from fedra.registry import Positive


def per_fedavg(
    *,
    order: Literal["first", "hessian-free"] = "first",
    inner_lr: Positive | None = None,
    delta: Positive = 1e-3,
    epochs: Stages = 1,
) -> Algorithm:
    """Descends the loss after one plain step of `inner_lr`; a client then takes such steps for `epochs`.

    One half of every batch takes the step, the other half says how good it was. Without `inner_lr` the step is as
    long as the local optimiser's, which decays with it; the outer step is that optimiser's own, momentum and weight
    decay included. Clients make their models without either.
    """
    own = FineTune(epochs, lr=inner_lr, plain=True)
    return fedavg().plus(MetaStep(order, inner_lr, delta), own)
