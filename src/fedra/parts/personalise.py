"""Personalisers: how a client turns the final global model into its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field

from fedra.core.algorithm import Algorithm
from fedra.core.part import Personaliser, Sharing
from fedra.parts.gradient import Scope


@dataclass(frozen=True)
class FineTune(Personaliser):
    """Plain training on the client's own data from the final global model: all of it, its head or its body.

    The learning rate is the last round's, decayed as in training, or the first round's with `initial_rate`.
    """

    epochs: Annotated[int, Field(ge=1)] = 5
    scope: Scope = "all"
    initial_rate: bool = False
    formula: ClassVar[str] = "w_k = w_g after `epochs` of SGD on the client's own loss, over the parameters of `scope`"

    def algorithm(self, algorithm: Algorithm) -> Algorithm:
        frozen = {"all": (), "head": ("body.",), "body": ("head.",)}[self.scope]
        plain = Algorithm(objective=algorithm.objective[:1], combine=algorithm.combine)
        return replace(plain, sharing=Sharing(algorithm.sharing.private, frozen))
