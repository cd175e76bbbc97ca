"""FedRep: every client fits a head of its own first, then the body that all share.

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
    """In a round's first `head_epochs` the body stands still, in the others the head (FedRep, Collins et al., ICML
    2021).

    What stands still is not moved by momentum or weight decay either; running statistics follow every pass.
    """

    head_epochs: Annotated[int, Field(ge=1)] = 1
    formula: ClassVar[str] = "head <- head - lr g  in epochs 1 .. head_epochs,  then  body <- body - lr g"

    def check_training(self, optimizer: Optimizer, epochs: int) -> None:
        if epochs <= self.head_epochs:
            raise ConfigError(
                f"the part '{self.name}' trains the head for {self.head_epochs} of {epochs} local epochs, so that "
                f"none is left for the body: train for more than {self.head_epochs}"
            )
        if not isinstance(optimizer, Sgd):
            raise ConfigError(
                f"the part '{self.name}' lets parameters stand still, which Adam's one count of steps does not allow: "
                "use the optimizer 'sgd'"
            )

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        gradient = inner(params)
        begun = view.batch.epoch < self.head_epochs
        view.hold("body", begun)
        view.hold("head", not begun if isinstance(begun, bool) else begun.logical_not())
        return gradient


def fedrep(*, head_epochs: Annotated[int, Field(ge=1)] = 1) -> Algorithm:
    """Keeps heads private; of `local.epochs` the first `head_epochs` train the head alone, the others the body alone.

    `local.epochs` must therefore be larger than `head_epochs`.
    """
    return fedavg().plus(Sharing(private=("head.",)), HeadThenBody(head_epochs), KeepPrivate())
