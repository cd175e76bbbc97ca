"""A classifier judged on labeled examples: figures, the lines of its table, and the picture of its confusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from fedra.console import steps, tell
from fedra.core.batches import Examples
from fedra.core.evaluate import Counts, count, portions
from fedra.core.model import Model, Weights
from fedra.errors import ConfigError
from fedra.evaluation.classifier_metrics import METRICS, Metric
from fedra.evaluation.metrics import DEFAULT, MOST_CLASSES, check_classes, compute_metrics, probabilities_of
from fedra.evaluation.results import Draw, ProtocolResult

CHEAP = ("accuracy", "balanced-accuracy", "log-loss", "per-class")
"""What is measured of very many classes, unless told."""


@dataclass(frozen=True)
class LabeledSet:
    """Examples with class numbers of the model's, what they are called, and what has to be said about them."""

    name: str
    examples: Examples
    note: str | None = None


def default_metrics(classes: int) -> tuple[Metric, ...]:
    """Everything, or of very many classes what is soon computed."""
    return tuple(METRICS.values()) if classes <= MOST_CLASSES else tuple(METRICS[name] for name in CHEAP)


def judge_classifier(
    module: nn.Module,
    data: LabeledSet,
    classes: Sequence[str],
    metrics: Sequence[Metric],
    device: torch.device,
    console: Console | None,
) -> ProtocolResult:
    """Right answers and metrics of a model with a body and a head on labeled examples."""
    tell(console, data.note)
    counts = _count(module, data, len(classes), device, console)
    assert counts.logits is not None, "the scores were asked for"
    return classification_result(counts, data.examples.targets, classes, metrics, console)


def _count(module: nn.Module, data: LabeledSet, classes: int, device: torch.device, console: Console | None) -> Counts:
    model = Model(module, device)
    weights = Weights(*(model.arrange(values) for values in model.weights()))
    parts: list[Counts] = []
    with steps(console, "counting right answers", len(data.examples)) as done:
        for cut in portions(len(data.examples)):
            try:
                parts += count(model, weights, data.examples, classes, [cut], scores=True)
            except (RuntimeError, IndexError) as error:
                reason = str(error).partition("\n")[0]
                shape = tuple(data.examples.inputs.shape[1:])
                raise ConfigError(
                    f"the model cannot read examples of shape {shape} of {data.name} ({reason})"
                ) from error
            done(cut[1] - cut[0])
    return Counts.total(parts)


def classification_result(
    counts: Counts, targets: Tensor, classes: Sequence[str], metrics: Sequence[Metric], console: Console | None
) -> ProtocolResult:
    """The figures of a test, by the names of the classes."""
    from fedra.evaluation.confusion_plot import draw_confusion

    check_classes(metrics, len(classes))
    assert counts.logits is not None, "the scores were asked for"
    others = [metric for metric in metrics if metric.name not in DEFAULT]
    found = compute_metrics(others, targets, probabilities_of(counts.logits))
    tested = {
        name: share for name, share in zip(classes, counts.class_accuracy.tolist(), strict=True) if share == share
    }
    mean = sum(tested.values()) / len(tested)
    figures: dict[str, Any] = {"images": len(targets), "accuracy": counts.accuracy, "class_mean": mean}
    figures |= {"loss": counts.mean_loss, "class_accuracy": tested, "classes": list(classes), **found}
    table = {"images": f"{len(targets):,}", "accuracy": f"{counts.accuracy:.2%}", "balanced accuracy": f"{mean:.2%}"}
    table |= {one.name.replace("-", " "): one.text(found[one.key]) for one in others if one.single and one.key in found}
    table["loss"] = f"{counts.mean_loss:.4f}"
    if counts.only_answer is not None:
        figures["only_class"] = classes[counts.only_answer]
        tell(console, predicts_one_class(str(classes[counts.only_answer])))
    pictures: dict[str, Draw] = {}
    if found.get("confusion") is not None:
        pictures["confusion.svg"] = lambda path: draw_confusion(found["confusion"], classes, path)
    return ProtocolResult(figures, table, pictures)


def predicts_one_class(name: str) -> str:
    """The warning about a model that has one answer for everything."""
    return (
        f"warning: the model predicts class '{name}' for every test example, so its accuracy is that class's share: "
        "look at balanced-accuracy and auroc (evaluation.metrics), and train longer or at another rate"
    )
