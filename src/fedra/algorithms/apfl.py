"""APFL: every client mixes the global model with one of its own, in a share that it learns.

Deng et al., "Adaptive personalized federated learning", arXiv 2003.13461.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.parts.twin import MixedTwin


def apfl(*, alpha: Annotated[float, Field(ge=0, le=1)] = 0.5, adaptive: bool = True) -> Algorithm:
    """Trains alpha v + (1 - alpha) w in v, the client's own, beside FedAvg's w; `adaptive` learns alpha as well."""
    return fedavg().plus(MixedTwin(alpha, adaptive))
