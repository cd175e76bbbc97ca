"""Angular margins as a term: class vectors of the federation's own, and any margin loss on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedra.core.model import Output
from fedra.core.part import Algorithm, Term
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.errors import ConfigError
from fedra.losses import ArcFace
from fedra.losses.base import AngularLoss
from fedra.registry import Strength

SPREAD = 0.01
"""Standard deviation of the class vectors at the start, as in FedArc's public code."""


@dataclass(frozen=True)
class MarginSoftmax(Term):
    """A margin loss between the features and class vectors F, which are trained and averaged like the model.

    F is separate from the classifier: it shapes the features during training and predicts nothing.
    """

    margin: AngularLoss = ArcFace(scale=64.0, margin=0.4)  # noqa: RUF009  (frozen)
    weight: Strength = 0.5
    moves_head: ClassVar[bool] = False
    formula: ClassVar[str] = "weight * mean_i L_margin(cos(f_i, F_c), y_i)"

    def __post_init__(self) -> None:
        super().__post_init__()
        # The engine checks losses once per client, without looking at the device in every step.
        object.__setattr__(self, "margin", replace(self.margin, check=False))

    def check(self, algorithm: Algorithm) -> None:
        if self.margin.init_state(torch.eye(2)):
            raise ConfigError(
                f"the loss {type(self.margin).__name__} keeps running statistics from step to step, which a federated "
                "objective does not carry: choose one without, such as arcface, cosface or adaptive-margin"
            )

    def init_params(self, features: int, classes: int, draw: torch.Generator) -> Params:
        vectors = SPREAD * torch.randn(classes, features, generator=draw)
        return {"vectors": vectors, **self.margin.init_learned(vectors)}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        own = {name.partition(".")[2]: value for name, value in params.items() if name.startswith(f"{self.name}.")}
        vectors = own.pop("vectors")
        losses = self.margin.per_example(output.features, vectors, view.batch.targets, learned=own)
        return self.weight * view.batch.mean(losses)
