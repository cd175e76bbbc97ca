"""Counting correct predictions, which every runner can split into tasks, and computing features batch by batch."""

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
"""Examples per pass. Fixed, because the rounding of a sum depends on its grouping."""


@dataclass(frozen=True)
class Counts:
    """Examples and correct predictions per class, and the summed loss, in float64 on the CPU.

    `predicted` counts how often each class was predicted. `logits` (N, C), in the order of the test set, are set if
    the job keeps scores, which metrics such as AUROC need.
    """

    examples: Tensor
    correct: Tensor
    loss: float
    predicted: Tensor | None = None
    logits: Tensor | None = None

    @property
    def accuracy(self) -> float:
        """The share of correct predictions; 0 if nothing was counted."""
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
        """The class that the model predicts for every example although there are several, if it does so."""
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


def evaluation_batches(examples: int) -> list[tuple[int, int]]:
    """Start and end of each evaluation batch."""
    return [(start, min(start + EVALUATION_BATCH, examples)) for start in range(0, examples, EVALUATION_BATCH)]


def evaluate(model: Model, weights: Weights, test: Examples, classes: int, scores: bool = False) -> Counts:
    """Count correct predictions on a whole test set in this process; with `scores`, keep the logits."""
    arranged = Weights(model.arrange(weights.params), model.arrange(weights.buffers))
    return Counts.total(count(model, arranged, test, classes, evaluation_batches(len(test)), scores))


@torch.no_grad()
def count(
    model: Model,
    weights: Weights,
    test: Examples,
    classes: int,
    batches: Sequence[tuple[int, int]],
    scores: bool = False,
) -> list[Counts]:
    """Count correct predictions and losses of each batch, given by start and end, in evaluation mode.

    All passes are queued before the first result is read, so the device is synchronized only two or three times.
    """
    results = [_predict(model, weights, test, start, end, scores) for start, end in batches]
    sizes = [end - start for start, end in batches]
    losses = torch.stack([result.loss for result in results]).tolist()
    predictions = torch.split(torch.cat([result.predicted for result in results]).cpu(), sizes)
    labels = [test.targets[start:end].cpu() for start, end in batches]
    scored = [result.logits for result in results if result.logits is not None]
    logits = torch.split(torch.cat(scored).cpu(), sizes) if scored else [None] * len(sizes)
    return [
        Counts(
            _histogram(label, classes),
            _histogram(label[predicted == label], classes),
            loss,
            _histogram(predicted, classes),
            outputs,
        )
        for label, predicted, loss, outputs in zip(labels, predictions, losses, logits, strict=True)
    ]


def _histogram(labels: Tensor, classes: int) -> Tensor:
    return torch.bincount(labels, minlength=classes).double()


class _Prediction(NamedTuple):
    """The model's predictions for one batch, still on the device."""

    predicted: Tensor
    loss: Tensor
    logits: Tensor | None


def _predict(model: Model, weights: Weights, test: Examples, start: int, end: int, scores: bool) -> _Prediction:
    inputs, targets = test.ready(model, start, end)
    logits = model.output(weights, inputs).logits
    precise = logits if logits.device.type == "mps" else logits.double()  # mps has no float64
    loss = F.cross_entropy(precise, targets, reduction="sum")
    # Half-precision tensors cannot be sent between processes; float32 holds them exactly.
    scored = (logits if logits.dtype == torch.float64 else logits.float()) if scores else None
    return _Prediction(logits.argmax(dim=1), loss, scored)


def ignore_progress(count: int) -> None:
    """Ignore progress; the default progress callback."""


@torch.no_grad()
def embed(model: Model, weights: Weights, examples: Examples, done: Callable[[int], None] = ignore_progress) -> Tensor:
    """The body's features (N, d) in evaluation mode, on the CPU; `done` receives the size of each finished batch."""
    features = []
    for start, end in evaluation_batches(len(examples)):
        inputs, _ = examples.ready(model, start, end)
        features.append(model.features(weights, inputs, train=False).flatten(1).cpu())
        done(end - start)
    return torch.cat(features)
