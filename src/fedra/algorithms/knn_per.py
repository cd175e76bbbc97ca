"""kNN-Per: the global model's answers, mixed with those of a client's nearest own examples.

Marfoq et al., "Personalized federated learning through local memorization", ICML 2022.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.neighbours import NearestNeighbours, Proportion, Stages
from fedra.registry import Positive


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
    own = NearestNeighbours(epochs, k=k, share=share, grid=grid, capacity=capacity, scale=scale, mix=mix)
    return fedavg().plus(own)
