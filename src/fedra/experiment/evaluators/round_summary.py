"""The metrics of a run, and the summary of its rounds: final and best values, and the best round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedra.config.schema import EvaluationSection, Protocol
from fedra.errors import ConfigError, nearest
from fedra.evaluation.classification import one_class_warning
from fedra.evaluation.classifier_metrics import METRICS, Metric
from fedra.evaluation.metrics import MetricChoice, choose_metrics
from fedra.evaluation.results import is_evaluated

LOSS = Metric("loss", lambda targets, probabilities: None, higher=False)
"""The mean cross-entropy, which every classification test has; it is not computed as a metric."""

OF_PROTOCOLS: Mapping[Protocol, tuple[Metric, ...]] = {
    "verification": (METRICS["accuracy"], METRICS["auroc"]),
    "clients": (METRICS["accuracy"], METRICS["auroc"], Metric("eer", LOSS.compute, higher=False, percent=True)),
}
"""The metrics of the other protocols, any of which can choose the best round."""

ONLY_CLASS = "only_class"
"""Key in a round's record: the class, if the model predicts the same one for every example."""


@dataclass(frozen=True)
class Measures:
    """The metrics of a run, and the one that chooses the best round."""

    metrics: tuple[Metric, ...] = (METRICS["accuracy"],)
    best: Metric = METRICS["accuracy"]

    @property
    def single(self) -> tuple[Metric, ...]:
        """The metrics with a single value, which are recorded in every round."""
        return tuple(metric for metric in self.metrics if metric.single)

    @property
    def tables(self) -> tuple[Metric, ...]:
        """The metrics with several values, which are only in the summary."""
        return tuple(metric for metric in self.metrics if not metric.single)


def choose_measures(section: EvaluationSection, protocol: Protocol, own: MetricChoice = ()) -> Measures:
    """Choose the metrics of a configuration and of user functions, checked against the protocol."""
    named: list[Any] = [*section.metrics]
    if protocol in OF_PROTOCOLS:
        _refuse_others(section, protocol)
        fixed = OF_PROTOCOLS[protocol]
        return Measures(fixed, _best(section.best, fixed))
    mine = choose_metrics(own)
    if section.best in METRICS and section.best not in named:
        named.append(section.best)  # the metric that chooses the best round must be measured
    chosen = choose_metrics([*named, *mine])
    return Measures(chosen, _best(section.best, (*chosen, LOSS)))


def _refuse_others(section: EvaluationSection, protocol: Protocol) -> None:
    """Raise on settings that need class probabilities, which only a classifier has."""
    asked = {
        "metrics": [name for name in section.metrics if name != "accuracy"],
        "validation": section.validation,
        "per_client": section.per_client,
    }
    for name, value in asked.items():
        if value:
            raise ConfigError(
                f"evaluation.{name} needs evaluation.protocol = 'classification', got '{protocol}', which compares "
                "embeddings: leave it out, or set the protocol"
            )


def _best(name: str, known: Sequence[Metric]) -> Metric:
    found = {metric.name: metric for metric in known if metric.single}
    if name not in found:
        raise ConfigError(f"evaluation.best must be a metric of every round, got '{name}': {nearest(name, found)}")
    return found[name]


def summarize_rounds(lines: Sequence[Mapping[str, Any]], measures: Measures) -> dict[str, Any]:
    """Return the `final_` and `best_` values of every metric, and the best round."""
    found: dict[str, Any] = {}
    for metric in {one.key: one for one in (*measures.single, measures.best)}.values():
        tested = [line.get(metric.key) for line in lines if is_evaluated(line)]
        values = [value for value in tested if value is not None]
        best = (max if metric.higher else min)(values, default=None)
        found |= {f"final_{metric.key}": tested[-1] if tested else None, f"best_{metric.key}": best}
    return found | {"best_round": best_round(lines, measures.best), "best_by": measures.best.name}


def best_round(lines: Sequence[Mapping[str, Any]], metric: Metric) -> int | None:
    """Return the first round with the best value."""
    found: tuple[int | None, float | None] = (None, None)
    for line in lines:
        value = line.get(metric.key)
        if value is not None and metric.improves(value, found[1]):
            found = (line["round"], value)
    return found[0]


def one_class_hint(lines: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> str | None:
    """Return a warning if the last test predicted the same class for every example."""
    tested = [line for line in lines if line.get("accuracy") is not None]
    if not tested or tested[-1].get(ONLY_CLASS) is None:
        return None
    return one_class_warning(str(classes[tested[-1][ONLY_CLASS]]))
