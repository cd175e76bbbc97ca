"""The built-in metrics of a classifier, computed by scikit-learn.

A metric sees the true classes (N,) and the probabilities (N, C), both NumPy arrays. A figure that the test set cannot
show (AUROC on one class) is None.
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
    """A figure of merit of a classifier.

    Args:
        name: What configurations and records call it; records write `-` as `_`.
        compute: Function of the true classes (N,) and the probabilities (N, C), NumPy arrays, that returns one number.
        higher: Whether a larger value is better; decides which round is the best.
        percent: Whether tables print it in percent.
        single: Whether it is one number; others (per class, confusion matrix) are kept in the summary alone.

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
        """Its name in records."""
        return self.name.replace("-", "_")

    def improves(self, value: float, than: float | None) -> bool:
        """Whether a value is better than another; anything is better than none."""
        return than is None or (value > than if self.higher else value < than)

    def text(self, value: float | None) -> str:
        """A value as tables print it."""
        if value is None:
            return "undefined"
        return f"{value:.2%}" if self.percent else f"{value:.4f}"


METRICS: dict[str, Metric] = {}
"""The built-in metrics by name."""


def _add(name: str, **about: bool) -> Callable[[Compute], Compute]:
    def adding(compute: Compute) -> Compute:
        METRICS[name] = Metric(name, compute, **about)
        return compute

    return adding


# The built-in metrics. Averages go over the classes that the test set has.


def _present(targets: Targets) -> list[int]:
    return [int(label) for label in np.unique(targets)]


def _averaged_over(targets: Targets, probabilities: Probabilities) -> list[int]:
    """The positive class of two, or all classes that are there."""
    return [1] if probabilities.shape[1] == 2 else _present(targets)


@_add("accuracy", percent=True)
def _accuracy(targets: Targets, probabilities: Probabilities) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(targets, probabilities.argmax(axis=1)))


@_add("balanced-accuracy", percent=True)
def _balanced_accuracy(targets: Targets, probabilities: Probabilities) -> float:
    from sklearn.metrics import recall_score

    said = probabilities.argmax(axis=1)
    return float(recall_score(targets, said, labels=_present(targets), average="macro", zero_division=0))


def _of_answers(function: str, targets: Targets, probabilities: Probabilities, labels: list[int]) -> float:
    from sklearn import metrics

    said = probabilities.argmax(axis=1)
    empty = np.nan if function == "recall_score" else 0  # without positives there is nothing to recall
    return float(getattr(metrics, function)(targets, said, labels=labels, average="macro", zero_division=empty))


@_add("precision", percent=True)
def _precision(targets: Targets, probabilities: Probabilities) -> float:
    return _of_answers("precision_score", targets, probabilities, _averaged_over(targets, probabilities))


@_add("recall", percent=True)
def _recall(targets: Targets, probabilities: Probabilities) -> float:
    return _of_answers("recall_score", targets, probabilities, _averaged_over(targets, probabilities))


@_add("f1", percent=True)
def _f1(targets: Targets, probabilities: Probabilities) -> float:
    return _of_answers("f1_score", targets, probabilities, _averaged_over(targets, probabilities))


@_add("f1-macro", percent=True)
def _f1_macro(targets: Targets, probabilities: Probabilities) -> float:
    return _of_answers("f1_score", targets, probabilities, _present(targets))


def _one_against_rest(function: str, targets: Targets, probabilities: Probabilities) -> float | None:
    from sklearn import metrics

    labels = _averaged_over(targets, probabilities)
    told_apart = [label for label in labels if 0 < int((targets == label).sum()) < len(targets)]
    if not told_apart:
        return None
    each = [getattr(metrics, function)(targets == label, probabilities[:, label]) for label in told_apart]
    return float(np.mean(each))


@_add("auroc")
def _auroc(targets: Targets, probabilities: Probabilities) -> float | None:
    return _one_against_rest("roc_auc_score", targets, probabilities)


@_add("average-precision")
def _average_precision(targets: Targets, probabilities: Probabilities) -> float | None:
    return _one_against_rest("average_precision_score", targets, probabilities)


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

    said, labels = probabilities.argmax(axis=1), np.arange(probabilities.shape[1])
    columns = precision_recall_fscore_support(targets, said, labels=labels, zero_division=np.nan)
    names = ("precision", "recall", "f1", "examples")
    found = {name: [_number(value) for value in column] for name, column in zip(names, columns, strict=True)}
    return found | {"auroc": [_class_auroc(targets, probabilities, int(label)) for label in labels]}


def _class_auroc(targets: Targets, probabilities: Probabilities, label: int) -> float | None:
    from sklearn.metrics import roc_auc_score

    known = 0 < int((targets == label).sum()) < len(targets)
    return float(roc_auc_score(targets == label, probabilities[:, label])) if known else None


@_add("confusion", single=False)
def _confusion(targets: Targets, probabilities: Probabilities) -> list[list[int]]:
    """Rows are the true classes, columns the answers."""
    from sklearn.metrics import confusion_matrix

    said, labels = probabilities.argmax(axis=1), np.arange(probabilities.shape[1])
    matrix: list[list[int]] = confusion_matrix(targets, said, labels=labels).tolist()
    return matrix


def _number(value: float) -> float | None:
    """For JSON: a count stays whole, what is undefined is None."""
    if not np.isfinite(value):
        return None
    return int(value) if float(value).is_integer() and isinstance(value, np.integer) else float(value)
