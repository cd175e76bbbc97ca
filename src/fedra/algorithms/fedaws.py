"""FedAwS: clients of one class pull features to its class vector, the server pushes class vectors apart.

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
    """Trains with a loss on positives only, and a server step that pushes close class vectors apart.

    Args:
        closeness: Cosine between a feature and its class vector from which the client's loss is zero.
        threshold: Cosine between two class vectors above which the server pushes them apart.
        nearest: Push each class vector away from this many of its nearest ones only; None (the default) means all.
        strength: Weight of the server's penalty.
        lr: Learning rate of the server's steps.
        steps: Number of server steps per round.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedaws(threshold=0.3).server[0].penalty.threshold
        0.3
    """
    spread = SpreadOut(Hinge(threshold, nearest), strength, lr, steps)
    return fedpe().plus(PositiveHinge(closeness), spread)
