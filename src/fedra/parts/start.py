"""Start rules: how weights begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import AsksClients
from fedra.core.part import StartRule
from fedra.core.tree import Params
from fedra.errors import ConfigError


@dataclass(frozen=True)
class MeanRows(StartRule, AsksClients):
    """The class embeddings begin at the mean features of their classes under the start model, as FedFace has it.

    Before the first round every client looks at its own images through the start model, which should be a pre-trained
    one, and sends the mean feature of each of its classes; where several clients hold a class, the server takes the
    plain mean of theirs.
    """

    rows: str = "head.weight"
    formula: ClassVar[str] = "W_c = mean of f_start(x) over the images x of class c"

    def check(self, algorithm: Algorithm) -> None:
        if not algorithm.owns(self.rows):
            raise ConfigError(
                f"mean-rows begins with clients' mean features in '{self.rows}', which this algorithm does not give to "
                "classes: begin with fedpe, or with another sharing that owns it"
            )

    def first_rows(self, features: Tensor, targets: Tensor, classes: int) -> Params:
        return {self.rows: class_means(features, targets, classes)}


def class_means(features: Tensor, targets: Tensor, classes: int) -> Tensor:
    """The mean feature (classes, d) of every class; all have examples."""
    targets = targets.to(features.device)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, targets, features)
    return sums / targets.bincount(minlength=classes).to(features)[:, None]
