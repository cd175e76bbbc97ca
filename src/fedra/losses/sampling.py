"""PartialFC: a sample of very many classes, so a step uses only their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedra.errors import ConfigError


class ClassSample(NamedTuple):
    """The result of `PartialFC`.

    Divide a sum over the sampled negatives by `inclusion` and its expectation is the sum over all negatives.

    Args:
        classes: The sampled class indices, ascending.
        labels: The batch's labels as indices into `classes`.
        inclusion: Probability that a class that is not in the batch was sampled.

    Example:
        >>> sample = PartialFC(rate=0.5)(torch.tensor([3, 7]), classes=10)
        >>> sample.classes[sample.labels]
        tensor([3, 7])
    """

    classes: Tensor
    labels: Tensor
    inclusion: float


@dataclass(frozen=True, kw_only=True)
class PartialFC:
    """Samples the batch's classes and random others, for heads with many classes (An et al. 2022, arXiv:2203.15565).

    Args:
        rate: Share of all classes in the sample, the batch's included.

    Example:
        >>> from fedra.losses import ArcFace
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(100, 16), torch.arange(8)
        >>> sample = PartialFC(rate=0.1)(labels, classes=len(weight))
        >>> ArcFace()(features, weight[sample.classes], sample.labels).shape
        torch.Size([])
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ConfigError(f"rate of PartialFC must be above 0 and at most 1, got {self.rate!r}")

    def __call__(self, labels: Tensor, *, classes: int, generator: torch.Generator | None = None) -> ClassSample:
        """Draw classes without replacement.

        Args:
            labels: The batch's labels (B,).
            classes: Number of all classes.
            generator: The generator; None (the default) is torch's default generator.

        Returns:
            The sampled classes, and the batch's labels among them.
        """
        present = torch.unique(labels)
        if len(present) and not 0 <= int(present[0]) <= int(present[-1]) < classes:
            raise ConfigError(
                f"labels must be between 0 and {classes - 1} ({classes} classes), got {present[0]} to {present[-1]}"
            )
        budget = max(int(self.rate * classes), len(present))
        scores = torch.rand(classes, generator=generator, device=generator.device if generator else None)
        scores = scores.to(labels.device).index_fill(0, present.long(), 2.0)  # above any random score
        chosen = scores.topk(budget).indices.sort().values
        absent = classes - len(present)
        inclusion = (budget - len(present)) / absent if absent else 1.0
        return ClassSample(chosen, torch.searchsorted(chosen, labels.long()), inclusion)
