"""Personalizers: which personal model a client uses after the last round."""

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
"""Epochs of fine-tuning, or several numbers of them, each of which is evaluated."""


@dataclass(frozen=True)
class KeepPrivate(Personalizer):
    """The final global model with the client's private parameters; nothing is trained after the last round.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> from fedra.parts import Sharing
        >>> fedavg().plus(Sharing(private=("head.",)), KeepPrivate()).personalize.name
        'keep-private'
    """

    formula: ClassVar[str] = "w_k = w_g with client k's private parameters"


@dataclass(frozen=True)
class FineTune(Personalizer):
    """Plain training on the client's data from the final global model: all of it, its head or its body.

    Args:
        epochs: Epochs of training. Several numbers, such as (1, 5), are each trained from the global model and
            evaluated.
        scope: Train "all" parameters, only the "head" or only the "body".
        initial_rate: Use the learning rate of the first round. False (the default) uses that of the last.
        lr: The learning rate of all parameters; None (the default) is the one that `initial_rate` selects.
        plain: Use SGD without momentum and weight decay.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(FineTune(epochs=(1, 5), scope="head")).personalize.scope
        'head'
    """

    epochs: Stages = 5
    scope: Scope = "all"
    initial_rate: bool = False
    lr: Positive | None = None
    plain: bool = False
    formula: ClassVar[str] = "w_k = w_g after `epochs` of training on the client's data, over the parameters of `scope`"

    def check(self, algorithm: Algorithm) -> None:
        _ = algorithm.label_loss  # raises an error if there is no loss to fine-tune on

    def algorithm(self, algorithm: Algorithm) -> Algorithm:
        frozen = {"all": (), "head": ("body.",), "body": ("head.",)}[self.scope]
        sharing = replace(algorithm.sharing, frozen=frozen)
        loss = (algorithm.label_loss,)
        return Algorithm(objective=loss, combine=algorithm.combine, sharing=sharing, data=algorithm.data)

    def training(self, local: LocalTraining, rounds: int) -> LocalTraining:
        local = super().training(local, rounds)
        if self.plain:
            local = replace(local, optimizer="sgd", momentum=0.0, weight_decay=0.0)
        return local if self.lr is None else replace(local, lr=self.lr, lr_of={})
