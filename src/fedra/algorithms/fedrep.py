"""FedRep: every client trains its personal head first, then the shared body.

Collins et al., "Exploiting shared representations for personalized federated learning", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ChecksTraining
from fedra.core.optimizer import Optimizer, Sgd
from fedra.core.part import GradientFunction, GradientRule
from fedra.core.sharing import Sharing
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.errors import ConfigError
from fedra.parts.personalize import KeepPrivate


@dataclass(frozen=True)
class HeadThenBody(GradientRule, ChecksTraining):
    """Trains the head alone in a round's first epochs, then the body alone (FedRep, Collins et al., ICML 2021).

    Momentum and weight decay do not move the other one either; running statistics follow every pass.

    Args:
        head_epochs: Number of epochs for the head at the start of a round.
    """

    head_epochs: Annotated[int, Field(ge=1)] = 1
    formula: ClassVar[str] = "head <- head - lr g  in epochs 1 .. head_epochs,  then  body <- body - lr g"

    def check_training(self, optimizer: Optimizer, epochs: int) -> None:
        if epochs <= self.head_epochs:
            raise ConfigError(
                f"local.epochs must be larger than {self.head_epochs} (head_epochs of the part '{self.name}'), got "
                f"{epochs}: no epoch is left for the body"
            )
        if not isinstance(optimizer, Sgd):
            raise ConfigError(
                f"local.optimizer must be 'sgd' with the part '{self.name}', which trains head and body in turns, got "
                f"'{type(optimizer).__name__.lower()}': Adam counts steps for all parameters alike"
            )

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        gradient = inner(params)
        trains_head = view.batch.epoch < self.head_epochs
        view.hold("body", trains_head)
        view.hold("head", not trains_head if isinstance(trains_head, bool) else trains_head.logical_not())
        return gradient


def fedrep(*, head_epochs: Annotated[int, Field(ge=1)] = 1) -> Algorithm:
    """Keeps heads private; a client trains its head for some epochs, then the body for the others.

    `local.epochs` must be larger than `head_epochs`.

    Args:
        head_epochs: Number of the local epochs that train the head alone.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedrep(head_epochs=2).gradient[0].head_epochs
        2
    """
    return fedavg().plus(Sharing(private=("head.",)), HeadThenBody(head_epochs), KeepPrivate())
