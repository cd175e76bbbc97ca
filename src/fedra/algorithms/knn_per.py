"""kNN-Per: the global model's predictions, mixed with those of a client's nearest training examples.

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
"""Epochs of fine-tuning, or several numbers of them; 0 is allowed."""


@dataclass(frozen=True)
class NearestNeighbors(FineTune):
    """Mixes the model's prediction with that of the nearest training examples (kNN-Per, Marfoq et al., ICML 2022).

    A client stores the features f of its training examples under its personal model: the global model, after
    fine-tuning if `epochs` is above 0.

    Args:
        epochs: Epochs of fine-tuning before features are stored; several numbers are each evaluated.
        scope: What fine-tuning trains: "all" parameters, the "head" or the "body".
        initial_rate: Fine-tune at the learning rate of the first round. False (the default) uses that of the last.
        lr: Learning rate of fine-tuning; None (the default) is the one that `initial_rate` selects.
        plain: Fine-tune by SGD without momentum and weight decay.
        k: Number of neighbors.
        share: Weight of the neighbors in the prediction, the paper's lambda.
        grid: More values of `share` to evaluate.
        capacity: Store the features of at most this many random examples; None (the default) stores all.
        scale: Scale of the squared distances; larger values weight the neighbors more equally.
        mix: "softmax" mixes probabilities. "logits" mixes the model's raw logits with the neighbors' probabilities, so
            the logits dominate.
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
        chosen = torch.randperm(len(local), generator=draw)[: self.capacity].to(local.targets.device)
        memory = Examples(local.inputs[chosen], local.targets[chosen], local.transform)
        known = embed(model, weights, memory).to(model.device)
        labels = memory.targets.to(model.device)

        def answer(inputs: Tensor) -> dict[str, Tensor]:
            features, logits = model.output(weights, inputs)
            neighbor_scores = self.probabilities(features.flatten(1), known, labels, logits.shape[1])
            model_scores = logits.softmax(dim=1) if self.mix == "softmax" else logits
            shares = {"": self.share} | {f"share_{share:g}": share for share in self.grid}
            return {name: share * neighbor_scores + (1 - share) * model_scores for name, share in shares.items()}

        return answer

    def probabilities(self, features: Tensor, known: Tensor, labels: Tensor, classes: int) -> Tensor:
        """Return each class's share of the weights of the nearest `known` features."""
        distances = torch.cdist(features, known, compute_mode="donot_use_mm_for_euclid_dist").square()
        nearest, indices = distances.topk(min(self.k, len(known)), largest=False)
        weight = F.softmax(-nearest / (known.shape[1] * self.scale), dim=1)
        return weight.new_zeros(len(features), classes).scatter_add_(1, labels[indices], weight)


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
    """Trains as FedAvg; predictions are mixed with those of a client's nearest training examples.

    The paper tunes `share` and does not fine-tune. FedSoL's table 5 fine-tunes first, with k = 5, share = 0.5 and
    capacity = 500; its code mixes raw logits.

    Args:
        k: Number of neighbors.
        share: Weight of the neighbors in the prediction, the paper's lambda.
        grid: More values of `share` to evaluate in the same run.
        capacity: Store the features of at most this many random examples; None (the default) stores all.
        scale: Scale of the squared distances; larger values weight the neighbors more equally.
        mix: "softmax" mixes probabilities, "logits" mixes raw logits with the neighbors' probabilities.
        epochs: Epochs of fine-tuning before features are stored; 0 (the default) is none.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> knn_per(k=10, share=0.3).personalize.share
        0.3
    """
    neighbors = NearestNeighbors(epochs, k=k, share=share, grid=grid, capacity=capacity, scale=scale, mix=mix)
    return fedavg().plus(neighbors)
