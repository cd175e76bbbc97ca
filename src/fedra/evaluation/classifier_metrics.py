"""Built-in metrics of a classifier, computed by scikit-learn.

A metric is a function of the true classes (N,) and the probabilities (N, C), both NumPy arrays. It is None if the
test set does not define it, such as AUROC on a single class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Targets = NDArray[np.int64]
Probabilities = NDArray[np.float64]
Compute = Callable[[Targets, Probabilities], Any]


@dataclass(frozen=True)
class Metric:
    """A metric of a classifier.

    Args:
        name: Name in configurations. Records use it with `_` instead of `-`.
        compute: Function of the true classes (N,) and the probabilities (N, C), both NumPy arrays. Returns one number,
            or None if these examples do not define the metric.
        higher: Whether a larger value is better. This decides which round is the best.
        percent: Whether tables print the value in percent.
        single: Whether the value is one number. Other values (per class, confusion matrix) are only stored in the
            summary.

    Example:
        ```python
        cost = Metric("cost", lambda targets, p: float((p[targets == 1, 0] > 0.5).mean()), higher=False)
        fedra.evaluate("runs/a", metrics=["auroc", cost])
        ```
    """

    name: str
    compute: Compute
    higher: bool = True
    percent: bool = False
    single: bool = True

    @property
    def key(self) -> str:
        """Key of the metric in metrics.jsonl and summary.json."""
        return self.name.replace("-", "_")

    def improves(self, value: float, than: float | None) -> bool:
        """Return whether a value is better than another one; any value is better than None."""
        return than is None or (value > than if self.higher else value < than)

    def text(self, value: float | None) -> str:
        """Return a value as tables print it."""
        if value is None:
            return "undefined"
        return f"{value:.2%}" if self.percent else f"{value:.4f}"


METRICS: dict[str, Metric] = {}
"""Built-in metrics by name: `METRICS["auroc"]` is a `Metric`, and `list(METRICS)` the names for configurations.

Example:
    ```python
    value = METRICS["auroc"].compute(targets, probabilities)
    ```
"""


def _add(name: str, **about: bool) -> Callable[[Compute], Compute]:
    def register(compute: Compute) -> Compute:
        METRICS[name] = Metric(name, compute, **about)
        return compute

    return register


# Averages are over the classes that occur in the test set, because scores of absent classes are undefined.


def _present_classes(targets: Targets) -> list[int]:
    return [int(label) for label in np.unique(targets)]


def _averaged_classes(targets: Targets, probabilities: Probabilities) -> list[int]:
    """Return the positive class if there are two classes, otherwise all classes that occur."""
    return [1] if probabilities.shape[1] == 2 else _present_classes(targets)


@_add("accuracy", percent=True)
def _accuracy(targets: Targets, probabilities: Probabilities) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(targets, probabilities.argmax(axis=1)))


@_add("balanced-accuracy", percent=True)
def _balanced_accuracy(targets: Targets, probabilities: Probabilities) -> float:
    from sklearn.metrics import recall_score

    predicted = probabilities.argmax(axis=1)
    return float(recall_score(targets, predicted, labels=_present_classes(targets), average="macro", zero_division=0))


def _score_predictions(function: str, targets: Targets, probabilities: Probabilities, labels: list[int]) -> float:
    from sklearn import metrics

    predicted = probabilities.argmax(axis=1)
    empty = np.nan if function == "recall_score" else 0  # recall is undefined without positive examples
    return float(getattr(metrics, function)(targets, predicted, labels=labels, average="macro", zero_division=empty))


@_add("precision", percent=True)
def _precision(targets: Targets, probabilities: Probabilities) -> float:
    return _score_predictions("precision_score", targets, probabilities, _averaged_classes(targets, probabilities))


@_add("recall", percent=True)
def _recall(targets: Targets, probabilities: Probabilities) -> float:
    return _score_predictions("recall_score", targets, probabilities, _averaged_classes(targets, probabilities))


@_add("f1", percent=True)
def _f1(targets: Targets, probabilities: Probabilities) -> float:
    return _score_predictions("f1_score", targets, probabilities, _averaged_classes(targets, probabilities))


@_add("f1-macro", percent=True)
def _f1_macro(targets: Targets, probabilities: Probabilities) -> float:
    return _score_predictions("f1_score", targets, probabilities, _present_classes(targets))


def _one_vs_rest(function: str, targets: Targets, probabilities: Probabilities) -> float | None:
    from sklearn import metrics

    labels = _averaged_classes(targets, probabilities)
    defined = [label for label in labels if 0 < int((targets == label).sum()) < len(targets)]
    if not defined:
        return None
    each = [getattr(metrics, function)(targets == label, probabilities[:, label]) for label in defined]
    return float(np.mean(each))


@_add("auroc")
def _auroc(targets: Targets, probabilities: Probabilities) -> float | None:
    return _one_vs_rest("roc_auc_score", targets, probabilities)


@_add("average-precision")
def _average_precision(targets: Targets, probabilities: Probabilities) -> float | None:
    return _one_vs_rest("average_precision_score", targets, probabilities)


@_add("log-loss", higher=False)
def _log_loss(targets: Targets, probabilities: Probabilities) -> float:
    from sklearn.metrics import log_loss

    return float(log_loss(targets, probabilities, labels=np.arange(probabilities.shape[1])))


@_add("mcc")
def _matthews(targets: Targets, probabilities: Probabilities) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(targets, probabilities.argmax(axis=1)))


@_add("per-class", single=False)
def _per_class(targets: Targets, probabilities: Probabilities) -> dict[str, list[float | None]]:
    from sklearn.metrics import precision_recall_fscore_support

    predicted, labels = probabilities.argmax(axis=1), np.arange(probabilities.shape[1])
    columns = precision_recall_fscore_support(targets, predicted, labels=labels, zero_division=np.nan)
    names = ("precision", "recall", "f1", "examples")
    found = {name: [_to_json(value) for value in column] for name, column in zip(names, columns, strict=True)}
    return found | {"auroc": [_class_auroc(targets, probabilities, int(label)) for label in labels]}


def _class_auroc(targets: Targets, probabilities: Probabilities, label: int) -> float | None:
    from sklearn.metrics import roc_auc_score

    is_defined = 0 < int((targets == label).sum()) < len(targets)
    return float(roc_auc_score(targets == label, probabilities[:, label])) if is_defined else None


@_add("confusion", single=False)
def _confusion(targets: Targets, probabilities: Probabilities) -> list[list[int]]:
    """Count predictions: one row per true class, one column per predicted class."""
    from sklearn.metrics import confusion_matrix

    predicted, labels = probabilities.argmax(axis=1), np.arange(probabilities.shape[1])
    matrix: list[list[int]] = confusion_matrix(targets, predicted, labels=labels).tolist()
    return matrix


def _to_json(value: float) -> float | None:
    """Convert to JSON: counts to int, undefined values to None."""
    if not np.isfinite(value):
        return None
    return int(value) if float(value).is_integer() and isinstance(value, np.integer) else float(value)
