"""Counting right answers, the one evaluation that every runner can share out; and features, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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


def evaluate(model: Model, weights: Weights, test: Examples, classes: int) -> Counts:
    """Right answers on a whole test set, batch by batch in this process."""
    arranged = Weights(model.arrange(weights.params), model.arrange(weights.buffers))
    return Counts.total(count(model, arranged, test, classes, portions(len(test))))


@torch.no_grad()
def count(
    model: Model, weights: Weights, test: Examples, classes: int, cuts: Sequence[tuple[int, int]]
) -> list[Counts]:
    """Right answers and losses on the examples from start to end of each cut, in evaluation mode.

    All passes are begun before anybody waits for the first: two looks at the device for all.
    """
    answers = [_answer(model, weights, test, start, end) for start, end in cuts]
    losses = torch.stack([loss for _, loss in answers]).tolist()
    right = torch.split(torch.cat([right for right, _ in answers]).cpu(), [end - start for start, end in cuts])
    labels = [test.targets[start:end].cpu() for start, end in cuts]
    return [
        Counts(
            torch.bincount(of, minlength=classes).double(), torch.bincount(of[hits], minlength=classes).double(), loss
        )
        for of, hits, loss in zip(labels, right, losses, strict=True)
    ]


def _answer(model: Model, weights: Weights, test: Examples, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Which answers are right, and the sum of the losses, both still on the device."""
    inputs, targets = test.ready(model, start, end)
    logits = model.output(weights, inputs).logits
    precise = logits if logits.device.type == "mps" else logits.double()  # mps has no float64
    return logits.argmax(dim=1) == targets, F.cross_entropy(precise, targets, reduction="sum")


def nobody(count: int) -> None:
    """Whoever is told of progress when nobody asks."""


@torch.no_grad()
def embed(model: Model, weights: Weights, examples: Examples, done: Callable[[int], None] = nobody) -> Tensor:
    """The body's features (N, d) in evaluation mode, on the CPU; `done` is told how many more are ready."""
    found = []
    for start, end in portions(len(examples)):
        inputs, _ = examples.ready(model, start, end)
        found.append(model.features(weights, inputs, train=False).flatten(1).cpu())
        done(end - start)
    return torch.cat(found)
