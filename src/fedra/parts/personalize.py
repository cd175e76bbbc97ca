"""Personalizers: which model a client uses in the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field

from fedra.core.algorithm import Algorithm
from fedra.core.local_training import LocalTraining
from fedra.core.personalizer import Personalizer
from fedra.parts.gradient import Scope
from fedra.registry import Positive

Epochs = Annotated[int, Field(ge=1)]
Stages = Epochs | Annotated[tuple[Epochs, ...], Field(min_length=1)]
"""Epochs of own training, or several lengths of it, each of which is tested."""


@dataclass(frozen=True)
class KeepPrivate(Personalizer):
    """The final global model with the client's private parameters in it: nothing is trained after the last round."""

    formula: ClassVar[str] = "w_k = w_g with the parameters that are private to k in their places"


@dataclass(frozen=True)
class FineTune(Personalizer):
    """Plain training on the client's own data from the final global model: all of it, its head or its body.

    The rate is the last round's, decayed as in training, or the first round's with `initial_rate`; `lr` is another.
    With several `epochs`, such as [1, 5], each length is trained from the global model and tested. `plain` steps
    without momentum and weight decay.
    """

    epochs: Stages = 5
    scope: Scope = "all"
    initial_rate: bool = False
    lr: Positive | None = None
    plain: bool = False
    formula: ClassVar[str] = "w_k = w_g after `epochs` of SGD on the client's own loss, over the parameters of `scope`"

    def check(self, algorithm: Algorithm) -> None:
        _ = algorithm.label_loss  # what a client trains on

    def algorithm(self, algorithm: Algorithm) -> Algorithm:
        frozen = {"all": (), "head": ("body.",), "body": ("head.",)}[self.scope]
        sharing = replace(algorithm.sharing, frozen=frozen)
        loss = (algorithm.label_loss,)
        return Algorithm(objective=loss, combine=algorithm.combine, sharing=sharing, data=algorithm.data)

    def training(self, local: LocalTraining, rounds: int) -> LocalTraining:
        local = super().training(local, rounds)
        if self.plain:
            local = replace(local, optimizer="sgd", momentum=0.0, weight_decay=0.0)
        return local if self.lr is None else replace(local, lr=self.lr)
