"""Training the head and the body in turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedra.core.optimizer import Optimizer, Sgd
from fedra.core.part import GradientFunction, GradientRule
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.errors import ConfigError


@dataclass(frozen=True)
class HeadThenBody(GradientRule):
    """In a round's first `head_epochs` the body stands still, in the others the head (FedRep, Collins et al., ICML
    2021).

    What stands still is not moved by momentum or weight decay either; running statistics follow every pass.
    """

    head_epochs: Annotated[int, Field(ge=1)] = 1
    formula: ClassVar[str] = "head <- head - lr g  in epochs 1 .. head_epochs,  then  body <- body - lr g"

    def check_training(self, optimizer: Optimizer, epochs: int) -> None:
        if epochs <= self.head_epochs:
            raise ConfigError(
                f"the part '{self.name}' trains the head for {self.head_epochs} of local.epochs = {epochs}, so that "
                f"none is left for the body: set local.epochs above {self.head_epochs}"
            )
        if not isinstance(optimizer, Sgd):
            raise ConfigError(
                f"the part '{self.name}' lets parameters stand still, which Adam's one count of steps does not allow: "
                "set local.optimizer = 'sgd'"
            )

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        gradient = inner(params)
        begun = view.batch.epoch < self.head_epochs
        view.hold("body", begun)
        view.hold("head", not begun if isinstance(begun, bool) else begun.logical_not())
        return gradient
