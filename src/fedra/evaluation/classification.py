"""Evaluation of a classifier on labeled examples: metrics, a table and a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from fedra.console import steps, tell
from fedra.core.batches import Examples
from fedra.core.evaluate import Counts, count, evaluation_batches
from fedra.core.model import Model, Weights
from fedra.errors import ConfigError
from fedra.evaluation.classifier_metrics import METRICS, Metric
from fedra.evaluation.images_per_class import draw_images_per_class, group_by_images
from fedra.evaluation.metrics import DEFAULT, MOST_CLASSES, check_classes, compute_metrics, compute_probabilities
from fedra.evaluation.results import Draw, ProtocolResult

CHEAP = ("accuracy", "balanced-accuracy", "log-loss", "per-class")
"""Default metrics for data sets with more than MOST_CLASSES classes."""


@dataclass(frozen=True)
class LabeledSet:
    """Examples labeled with the model's class indices, the name of the data set, and a note to print.

    `train_counts` are the numbers of training images of the classes, if they are known.
    """

    name: str
    examples: Examples
    note: str | None = None
    train_counts: Tensor | None = None


def default_metrics(classes: int) -> tuple[Metric, ...]:
    """Return all metrics, or only the cheap ones if there are very many classes."""
    return tuple(METRICS.values()) if classes <= MOST_CLASSES else tuple(METRICS[name] for name in CHEAP)


def evaluate_classifier(
    module: nn.Module,
    data: LabeledSet,
    classes: Sequence[str],
    metrics: Sequence[Metric],
    device: torch.device,
    console: Console | None,
) -> ProtocolResult:
    """Evaluate a model with a body and a head on labeled examples."""
    tell(console, data.note)
    counts = _count(module, data, len(classes), device, console)
    assert counts.logits is not None, "count() must keep the logits"
    result = classification_result(counts, data.examples.targets, classes, metrics, console)
    return result if data.train_counts is None else _with_groups(result, counts, data.train_counts)


def _with_groups(result: ProtocolResult, counts: Counts, train_counts: Tensor) -> ProtocolResult:
    """Add the accuracy by training images per class, if classes differ in their number."""
    groups = group_by_images(train_counts, counts.class_accuracy)
    if len(groups) < 2:
        return result
    record = {**result.metrics, "accuracy_by_images": [group._asdict() for group in groups]}
    table = {f"accuracy, {group.label} training images": f"{group.accuracy:.2%}" for group in groups}
    pictures: dict[str, Draw] = {"images-per-class.svg": lambda path: draw_images_per_class(groups, path)}
    return ProtocolResult(record, {**result.table, **table}, {**result.pictures, **pictures})


def _count(module: nn.Module, data: LabeledSet, classes: int, device: torch.device, console: Console | None) -> Counts:
    model = Model(module, device)
    weights = Weights(*(model.arrange(values) for values in model.weights()))
    parts: list[Counts] = []
    with steps(console, "evaluating", len(data.examples)) as done:
        for start, end in evaluation_batches(len(data.examples)):
            try:
                parts += count(model, weights, data.examples, classes, [(start, end)], scores=True)
            except (RuntimeError, IndexError) as error:
                reason = str(error).partition("\n")[0]
                shape = tuple(data.examples.inputs.shape[1:])
                raise ConfigError(
                    f"the model must accept inputs of shape {shape}, as in {data.name}, but it failed ({reason}): "
                    "check the data set, or its size and channels"
                ) from error
            done(end - start)
    return Counts.total(parts)


def classification_result(
    counts: Counts, targets: Tensor, classes: Sequence[str], metrics: Sequence[Metric], console: Console | None
) -> ProtocolResult:
    """Build the result of the classification protocol from counts and logits."""
    from fedra.evaluation.confusion_plot import draw_confusion

    check_classes(metrics, len(classes))
    assert counts.logits is not None, "count() must keep the logits"
    others = [metric for metric in metrics if metric.name not in DEFAULT]
    found = compute_metrics(others, targets, compute_probabilities(counts.logits))
    by_class = {  # NaN, which differs from itself, marks a class without test examples
        name: share for name, share in zip(classes, counts.class_accuracy.tolist(), strict=True) if share == share
    }
    mean = sum(by_class.values()) / len(by_class)
    record: dict[str, Any] = {"images": len(targets), "accuracy": counts.accuracy, "class_mean": mean}
    record |= {"loss": counts.mean_loss, "class_accuracy": by_class, "classes": list(classes), **found}
    table = {"images": f"{len(targets):,}", "accuracy": f"{counts.accuracy:.2%}", "balanced accuracy": f"{mean:.2%}"}
    table |= {one.name.replace("-", " "): one.text(found[one.key]) for one in others if one.single and one.key in found}
    table["loss"] = f"{counts.mean_loss:.4f}"
    if counts.only_answer is not None:
        record["only_class"] = classes[counts.only_answer]
        tell(console, one_class_warning(str(classes[counts.only_answer])))
    pictures: dict[str, Draw] = {}
    if found.get("confusion") is not None:
        pictures["confusion.svg"] = lambda path: draw_confusion(found["confusion"], classes, path)
    return ProtocolResult(record, table, pictures)


def one_class_warning(name: str) -> str:
    """Return the warning for a model that predicts the same class for every example."""
    return (
        f"warning: the model predicts class '{name}' for every test example, so its accuracy is the frequency of that "
        "class: check balanced-accuracy and auroc (evaluation.metrics), and train longer or change the learning rate"
    )
