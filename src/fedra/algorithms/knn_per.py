"""kNN-Per: the global model's answers, mixed with those of a client's nearest own examples.

Marfoq et al., "Personalized federated learning through local memorization", ICML 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples
from fedra.core.evaluate import embed
from fedra.core.model import Model, Weights
from fedra.core.personalizer import Answers
from fedra.parts.personalize import FineTune
from fedra.registry import Positive

Proportion = Annotated[float, Field(ge=0, le=1)]
Epochs = Annotated[int, Field(ge=0)]
Stages = Epochs | Annotated[tuple[Epochs, ...], Field(min_length=1)]
"""As those of fine-tuning, but none at all is a length too."""


@dataclass(frozen=True)
class NearestNeighbors(FineTune):
    """Mixes the model's answer with that of the client's nearest training examples (kNN-Per, Marfoq et al., ICML 2022).

    A client keeps the features f of its examples, or of `capacity` of them drawn at random, under its own model: the
    global one after `epochs` of fine-tuning (0: as it is). `share` is the neighbors' (the paper's lambda); shares
    listed in `grid` are tested too. `mix` "softmax" mixes probabilities, "logits" the model's raw logits with the
    neighbors' probabilities, in which the former prevail.
    """

    epochs: Stages = 0
    k: Annotated[int, Field(ge=1)] = 5
    share: Proportion = 0.5
    grid: tuple[Proportion, ...] = ()
    capacity: Annotated[int, Field(ge=1)] | None = None
    scale: Positive = 1.0
    mix: Literal["softmax", "logits"] = "softmax"
    formula: ClassVar[str] = (
        "share p + (1 - share) softmax(z),  p_c ~ sum_{j of the k nearest, y_j = c} exp(-||f - f_j||^2 / (dim f scale))"
    )

    @property
    def answers_are_probabilities(self) -> bool:
        return self.mix == "softmax"

    def answers(self, model: Model, weights: Weights, local: Examples, draw: torch.Generator) -> Answers:
        kept = torch.randperm(len(local), generator=draw)[: self.capacity].to(local.targets.device)
        memory = Examples(local.inputs[kept], local.targets[kept], local.transform)
        known = embed(model, weights, memory).to(model.device)
        labels = memory.targets.to(model.device)

        def answer(inputs: Tensor) -> dict[str, Tensor]:
            features, logits = model.output(weights, inputs)
            near = self.probabilities(features.flatten(1), known, labels, logits.shape[1])
            model_says = logits.softmax(dim=1) if self.mix == "softmax" else logits
            shares = {"": self.share} | {f"share_{share:g}": share for share in self.grid}
            return {name: share * near + (1 - share) * model_says for name, share in shares.items()}

        return answer

    def probabilities(self, features: Tensor, known: Tensor, labels: Tensor, classes: int) -> Tensor:
        """What the nearest of the `known` features say: each class's share of their weights."""
        apart = torch.cdist(features, known, compute_mode="donot_use_mm_for_euclid_dist").square()
        nearest, places = apart.topk(min(self.k, len(known)), largest=False)
        weight = F.softmax(-nearest / (known.shape[1] * self.scale), dim=1)
        return weight.new_zeros(len(features), classes).scatter_add_(1, labels[places], weight)


def knn_per(
    *,
    k: Annotated[int, Field(ge=1)] = 5,
    share: Proportion = 0.5,
    grid: tuple[Proportion, ...] = (),
    capacity: Annotated[int, Field(ge=1)] | None = None,
    scale: Positive = 1.0,
    mix: Literal["softmax", "logits"] = "softmax",
    epochs: Stages = 0,
) -> Algorithm:
    """Trains as FedAvg; in the end a client's `k` nearest training examples get a `share` in every answer.

    The paper tunes `share` (its lambda) and does not fine-tune: `grid` tests more shares at once. FedSoL's table 5
    fine-tunes for `epochs` first, with k = 5, share 0.5 and a capacity of 500; its code mixes raw logits.
    """
    own = NearestNeighbors(epochs, k=k, share=share, grid=grid, capacity=capacity, scale=scale, mix=mix)
    return fedavg().plus(own)
