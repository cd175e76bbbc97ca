"""Choose, check and compute metrics, given by name or as custom functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedra.errors import ConfigError, nearest
from fedra.evaluation.classifier_metrics import METRICS, Metric, Probabilities, Targets

MOST_CLASSES = 1000
"""Maximum number of classes of a confusion matrix, whose size is quadratic."""

RESERVED = ("round", "loss", "train_loss", "clients", "dropped", "restarted", "bytes_up", "bytes_down", "seconds")
"""Other keys of a round's line in metrics.jsonl."""

DEFAULT = ("accuracy",)
"""Default metrics; every runner computes them without collecting logits."""


MetricLike = str | Metric | Callable[..., Any]
MetricChoice = Mapping[str, "Metric | Callable[..., Any]"] | Iterable[MetricLike]


def choose_metrics(chosen: MetricChoice) -> tuple[Metric, ...]:
    """Return the metrics of a list of names, functions and `Metric`s, or of a mapping from names to functions.

    Accuracy is always included, because every evaluation computes it.
    """
    if isinstance(chosen, str):
        raise ConfigError(
            f"metrics must be a list of names or functions, got the string '{chosen}': write ['{chosen}']"
        )
    found = {"accuracy": METRICS["accuracy"]}
    named = chosen.items() if isinstance(chosen, Mapping) else ((None, one) for one in chosen)
    for name, one in named:
        metric = _metric(name, one)
        if found.get(metric.name, metric) != metric:
            raise ConfigError(f"metric names must be unique, got two metrics named '{metric.name}': rename one")
        found[metric.name] = metric
    return tuple(found.values())


def _metric(name: str | None, given: MetricLike) -> Metric:
    if isinstance(given, str):
        if given not in METRICS:
            raise ConfigError(f"there is no metric '{given}': {nearest(given, METRICS)}")
        return METRICS[given]
    if not callable(given) and not isinstance(given, Metric):
        raise ConfigError(f"a metric must be a name or a function (targets, probabilities) -> number, got {given!r}")
    own = given if isinstance(given, Metric) else Metric(name or str(getattr(given, "__name__", "metric")), given)
    if METRICS.get(own.name, own) != own or own.key in RESERVED:
        raise ConfigError(f"a custom metric must not have a name that fedra uses, got '{own.name}': rename it")
    return own


def split_metrics(chosen: MetricChoice) -> tuple[list[str], MetricChoice]:
    """Split metrics into names, which a configuration can record, and functions, which it cannot."""
    choose_metrics(chosen)
    if isinstance(chosen, Mapping):
        return [], chosen
    given = list(chosen)
    return [one for one in given if isinstance(one, str)], [one for one in given if not isinstance(one, str)]


def needs_scores(metrics: Sequence[Metric]) -> bool:
    """Return whether any metric needs logits in addition to the number of correct predictions."""
    return any(metric.name not in DEFAULT for metric in metrics)


def check_classes(metrics: Sequence[Metric], classes: int) -> None:
    """Raise for a confusion matrix that would fill the disk."""
    if classes > MOST_CLASSES and METRICS["confusion"] in metrics:
        raise ConfigError(
            f"the metric 'confusion' must have at most {MOST_CLASSES:,} classes, got {classes:,}: use 'per-class'"
        )


def compute_probabilities(logits: Tensor) -> Probabilities:
    """Compute the softmax in float64."""
    found: Probabilities = logits.double().softmax(dim=1).numpy()
    return found


def compute_metrics(metrics: Sequence[Metric], targets: Tensor, probabilities: Probabilities) -> dict[str, Any]:
    """Compute every metric, by key; None if it is undefined on these examples."""
    truth = targets.cpu().numpy()
    if not len(truth) or not np.isfinite(probabilities).all():
        return dict.fromkeys(metric.key for metric in metrics)
    return {metric.key: _value(metric, truth, probabilities) for metric in metrics}


def _value(metric: Metric, targets: Targets, probabilities: Probabilities) -> Any:
    try:
        value = metric.compute(targets, probabilities)
    except Exception as error:
        error.add_note(f"in the metric '{metric.name}', on {len(targets)} examples")
        raise
    if value is None or not metric.single:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"the metric '{metric.name}' must return one number, got {type(value).__name__}: return a float"
        ) from None
    return number if math.isfinite(number) else None


def mean_and_spread(name: str, values: Iterable[float | None], higher: bool = True) -> dict[str, float | None]:
    """Return mean, standard deviation and worst decile over clients that have a value, or None without any."""
    names = (name, f"{name}_std", f"{name}_worst_decile")
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return dict.fromkeys(names)
    worst = float(np.quantile(known, 0.1 if higher else 0.9))
    return dict(zip(names, (float(known.mean()), float(known.std()), worst), strict=True))


def compute_extra_metrics(metrics: Sequence[Metric], targets: Tensor, logits: Tensor | None) -> dict[str, Any]:
    """Compute the metrics other than accuracy from logits."""
    others = [metric for metric in metrics if metric.name not in DEFAULT]
    if not others:
        return {}
    assert logits is not None, "the job must keep scores for these metrics"
    return compute_metrics(others, targets, compute_probabilities(logits))
