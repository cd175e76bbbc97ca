"""Start rules: initial weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import CollectsFirstRows
from fedra.core.part import StartRule
from fedra.core.tree import Params
from fedra.errors import ConfigError


@dataclass(frozen=True)
class MeanRows(StartRule, CollectsFirstRows):
    """Class vectors start at the mean features of their classes under the start model (FedFace).

    Before the first round every client computes the features of its images under the start model, which should be
    pre-trained, and sends the mean feature of each of its classes. If several clients hold a class, the server takes
    the plain mean of theirs.

    Args:
        rows: Name of the parameter whose rows are the class vectors.

    Example:
        >>> from fedra.algorithms import fedpe
        >>> fedpe().plus(MeanRows()).start[0].rows
        'head.weight'
    """

    rows: str = "head.weight"
    formula: ClassVar[str] = "W_c = mean of f_start(x) over the images x of class c"

    def check(self, algorithm: Algorithm) -> None:
        if not algorithm.owns(self.rows):
            raise ConfigError(
                f"the class vectors '{self.rows}' must be owned by clients for the part 'mean-rows', got a "
                "sharing that does not own them: start from fedpe, or add them to the sharing's `owned`"
            )

    def first_rows(self, features: Tensor, targets: Tensor, classes: int) -> Params:
        return {self.rows: class_means(features, targets, classes)}


def class_means(features: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Return the mean feature of every class.

    Args:
        features: Features (N, d).
        targets: Class indices (N,); every class must occur.
        classes: Number of classes.

    Returns:
        The means (classes, d).

    Example:
        >>> import torch
        >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]), 2)
        tensor([[2.],
                [5.]])
    """
    targets = targets.to(features.device)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, targets, features)
    return sums / targets.bincount(minlength=classes).to(features)[:, None]
