"""PartialFC: a few classes out of very many, so that a step touches only their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedra.errors import ConfigError


class ClassSample(NamedTuple):
    """`classes` in ascending order, the batch's labels among them, and the chance of an absent class.

    Divide a sum over the sampled negatives by `inclusion` and its expectation is the sum over all negatives.
    """

    classes: Tensor
    labels: Tensor
    inclusion: float


@dataclass(frozen=True, kw_only=True)
class PartialFC:
    """The batch's classes and random others, `rate` of all together (An et al. 2022, arXiv:2203.15565).

    sample = PartialFC(rate=0.1)(labels, classes=len(weight))
    loss(features, weight[sample.classes], sample.labels)
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ConfigError(f"PartialFC cannot take rate={self.rate!r}: a share of the classes lies in (0, 1]")

    def __call__(self, labels: Tensor, *, classes: int, generator: torch.Generator | None = None) -> ClassSample:
        """Draw without replacement; `generator` None is torch's default generator."""
        present = torch.unique(labels)
        if len(present) and not 0 <= int(present[0]) <= int(present[-1]) < classes:
            raise ConfigError(f"PartialFC got labels {present[0]} to {present[-1]} for {classes} classes")
        budget = max(int(self.rate * classes), len(present))
        chances = torch.rand(classes, generator=generator, device=generator.device if generator else None)
        chances = chances.to(labels.device).index_fill(0, present.long(), 2.0)
        chosen = chances.topk(budget).indices.sort().values
        absent = classes - len(present)
        inclusion = (budget - len(present)) / absent if absent else 1.0
        return ClassSample(chosen, torch.searchsorted(chosen, labels.long()), inclusion)
