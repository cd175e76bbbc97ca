"""Counting right answers: the one evaluation that every runner can share out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedra.core.batches import Examples
from fedra.core.model import Model, Weights

EVALUATION_BATCH = 250
"""Examples per pass: fixed, because a sum's bits depend on its grouping."""


@dataclass(frozen=True)
class Counts:
    """Examples and right answers per class, and the sum of the losses, in float64 on the CPU."""

    examples: Tensor
    correct: Tensor
    loss: float

    @property
    def accuracy(self) -> float:
        """The share of right answers; 0 where nothing was counted."""
        return float(self.correct.sum() / self.examples.sum().clamp(min=1))

    @property
    def mean_loss(self) -> float:
        return self.loss / max(float(self.examples.sum()), 1.0)

    @property
    def class_accuracy(self) -> Tensor:
        """The accuracy of each class; NaN for a class without examples."""
        return self.correct / self.examples

    @staticmethod
    def total(parts: Iterable[Counts]) -> Counts:
        """The sum of several counts, in their order."""
        parts = list(parts)
        return Counts(
            torch.stack([part.examples for part in parts]).sum(dim=0),
            torch.stack([part.correct for part in parts]).sum(dim=0),
            sum(part.loss for part in parts),
        )


def portions(examples: int) -> list[tuple[int, int]]:
    """The evaluation batches of that many examples."""
    return [(start, min(start + EVALUATION_BATCH, examples)) for start in range(0, examples, EVALUATION_BATCH)]


@torch.no_grad()
def count(model: Model, weights: Weights, test: Examples, classes: int, start: int, end: int) -> Counts:
    """Right answers and losses on the examples from `start` to `end`, in evaluation mode."""
    inputs = model.ready(test.transform.prepare(test.inputs[start:end].to(model.device)))
    targets = test.targets[start:end].to(model.device)
    logits = model.output(weights, inputs).logits
    loss = F.cross_entropy(logits.double(), targets, reduction="sum")
    right = targets[logits.argmax(dim=1) == targets]
    return Counts(
        torch.bincount(targets, minlength=classes).double().cpu(),
        torch.bincount(right, minlength=classes).double().cpu(),
        float(loss),
    )
