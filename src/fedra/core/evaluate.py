"""Counting right answers, the one evaluation that every runner can share out; and features, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedra.core.batches import Examples
from fedra.core.model import Model, Weights

EVALUATION_BATCH = 250
"""Examples per pass: fixed, because a sum's bits depend on its grouping."""


@dataclass(frozen=True)
class Counts:
    """Examples and right answers per class, and the sum of the losses, in float64 on the CPU.

    `predicted` is how often each class was the answer. `logits` (N, C) are there where the job keeps scores: metrics
    that rank or weigh answers need all of them, in the order of the test set.
    """

    examples: Tensor
    correct: Tensor
    loss: float
    predicted: Tensor | None = None
    logits: Tensor | None = None

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

    @property
    def only_answer(self) -> int | None:
        """The class that the model predicts for every example, where the examples are of several classes."""
        if self.predicted is None or int((self.examples > 0).sum()) < 2:
            return None
        answers = self.predicted.nonzero().flatten().tolist()
        return int(answers[0]) if len(answers) == 1 else None

    @staticmethod
    def total(parts: Iterable[Counts]) -> Counts:
        """The sum of several counts, in their order."""
        parts = list(parts)
        predicted = [part.predicted for part in parts if part.predicted is not None]
        logits = [part.logits for part in parts if part.logits is not None]
        return Counts(
            torch.stack([part.examples for part in parts]).sum(dim=0),
            torch.stack([part.correct for part in parts]).sum(dim=0),
            sum(part.loss for part in parts),
            torch.stack(predicted).sum(dim=0) if predicted else None,
            torch.cat(logits) if logits else None,
        )


def portions(examples: int) -> list[tuple[int, int]]:
    """The evaluation batches of that many examples."""
    return [(start, min(start + EVALUATION_BATCH, examples)) for start in range(0, examples, EVALUATION_BATCH)]


def evaluate(model: Model, weights: Weights, test: Examples, classes: int, scores: bool = False) -> Counts:
    """Right answers on a whole test set, batch by batch in this process; with `scores`, the logits too."""
    arranged = Weights(model.arrange(weights.params), model.arrange(weights.buffers))
    return Counts.total(count(model, arranged, test, classes, portions(len(test)), scores))


@torch.no_grad()
def count(
    model: Model,
    weights: Weights,
    test: Examples,
    classes: int,
    cuts: Sequence[tuple[int, int]],
    scores: bool = False,
) -> list[Counts]:
    """Right answers and losses on the examples from start to end of each cut, in evaluation mode.

    All passes are begun before anybody waits for the first: two looks at the device for all, and one for scores.
    """
    answers = [_answer(model, weights, test, start, end, scores) for start, end in cuts]
    sizes = [end - start for start, end in cuts]
    losses = torch.stack([answer.loss for answer in answers]).tolist()
    said = torch.split(torch.cat([answer.said for answer in answers]).cpu(), sizes)
    labels = [test.targets[start:end].cpu() for start, end in cuts]
    kept = [answer.logits for answer in answers if answer.logits is not None]
    logits = torch.split(torch.cat(kept).cpu(), sizes) if kept else [None] * len(sizes)
    return [
        Counts(_histogram(of, classes), _histogram(of[guess == of], classes), loss, _histogram(guess, classes), outputs)
        for of, guess, loss, outputs in zip(labels, said, losses, logits, strict=True)
    ]


def _histogram(labels: Tensor, classes: int) -> Tensor:
    return torch.bincount(labels, minlength=classes).double()


class _Answer(NamedTuple):
    """What the model says of one batch, still on the device."""

    said: Tensor
    loss: Tensor
    logits: Tensor | None


def _answer(model: Model, weights: Weights, test: Examples, start: int, end: int, scores: bool) -> _Answer:
    inputs, targets = test.ready(model, start, end)
    logits = model.output(weights, inputs).logits
    precise = logits if logits.device.type == "mps" else logits.double()  # mps has no float64
    loss = F.cross_entropy(precise, targets, reduction="sum")
    # A half-precision tensor could not travel between processes; float32 holds it exactly.
    kept = (logits if logits.dtype == torch.float64 else logits.float()) if scores else None
    return _Answer(logits.argmax(dim=1), loss, kept)


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
