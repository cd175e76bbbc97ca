"""FedAwS: clients of one class pull, the server pushes their class embeddings apart.

Yu et al., "Federated learning with only positive labels", ICML 2020.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedra.algorithms.fedpe import fedpe
from fedra.core.algorithm import Algorithm
from fedra.parts.margin import PositiveHinge
from fedra.parts.spread import Hinge, SpreadOut
from fedra.registry import Positive, Strength


def fedaws(
    *,
    closeness: Annotated[float, Field(gt=-1, le=1)] = 0.9,
    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.4,
    nearest: Annotated[int, Field(ge=1)] | None = None,
    strength: Strength = 10.0,
    lr: Positive = 0.1,
    steps: Annotated[int, Field(ge=1)] = 1,
) -> Algorithm:
    """A loss of positives alone, and a server that pushes apart class embeddings closer than `threshold`."""
    spread = SpreadOut(Hinge(threshold, nearest), strength, lr, steps)
    return fedpe().plus(PositiveHinge(closeness), spread)
