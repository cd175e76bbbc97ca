"""What a run measures, and what its rounds' tests come to: final and best figures, the best round, a hint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedra.config.schema import EvaluationSection, Protocol
from fedra.errors import ConfigError, nearest
from fedra.evaluation.classification import predicts_one_class
from fedra.evaluation.classifier_metrics import METRICS, Metric
from fedra.evaluation.metrics import MetricChoice, choose_metrics
from fedra.evaluation.results import was_tested

LOSS = Metric("loss", lambda targets, probabilities: None, higher=False)
"""The mean cross-entropy, which every classification test has; its line is not computed as a metric."""

OF_PROTOCOLS: Mapping[Protocol, tuple[Metric, ...]] = {
    "verification": (METRICS["accuracy"], METRICS["auroc"]),
    "clients": (METRICS["accuracy"], METRICS["auroc"], Metric("eer", LOSS.compute, higher=False, percent=True)),
}
"""Figures that other tests than classification give, and which of them may choose the best round."""

ONLY_CLASS = "only_class"
"""In a round's line: the one class that the model predicts for every example."""


@dataclass(frozen=True)
class Measures:
    """What is measured of a run's model, and by what the best round is chosen."""

    metrics: tuple[Metric, ...] = (METRICS["accuracy"],)
    best: Metric = METRICS["accuracy"]

    @property
    def single(self) -> tuple[Metric, ...]:
        """The metrics that are one number each: those of a round's line."""
        return tuple(metric for metric in self.metrics if metric.single)

    @property
    def tables(self) -> tuple[Metric, ...]:
        """The metrics that are more: those of the summary."""
        return tuple(metric for metric in self.metrics if not metric.single)


def choose_measures(section: EvaluationSection, protocol: Protocol, own: MetricChoice = ()) -> Measures:
    """The metrics of a configuration and of the user's own functions, checked against the run's protocol."""
    named: list[Any] = [*section.metrics]
    if protocol in OF_PROTOCOLS:
        _refuse_others(section, protocol)
        fixed = OF_PROTOCOLS[protocol]
        return Measures(fixed, _best(section.best, fixed))
    mine = choose_metrics(own)
    if section.best in METRICS and section.best not in named:
        named.append(section.best)  # whoever chooses by a metric wants it measured
    chosen = choose_metrics([*named, *mine])
    return Measures(chosen, _best(section.best, (*chosen, LOSS)))


def _refuse_others(section: EvaluationSection, protocol: Protocol) -> None:
    """Only a classifier has probabilities of classes."""
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
    """`final_` and `best_` figures of every metric (the best over the rounds, each for itself), and the best round."""
    found: dict[str, Any] = {}
    for metric in {one.key: one for one in (*measures.single, measures.best)}.values():
        tested = [line.get(metric.key) for line in lines if was_tested(line)]
        values = [value for value in tested if value is not None]
        best = (max if metric.higher else min)(values, default=None)
        found |= {f"final_{metric.key}": tested[-1] if tested else None, f"best_{metric.key}": best}
    return found | {"best_round": best_round(lines, measures.best), "best_by": measures.best.name}


def best_round(lines: Sequence[Mapping[str, Any]], metric: Metric) -> int | None:
    """The first round with the best value."""
    found: tuple[int | None, float | None] = (None, None)
    for line in lines:
        value = line.get(metric.key)
        if value is not None and metric.improves(value, found[1]):
            found = (line["round"], value)
    return found[0]


def one_class_hint(lines: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> str | None:
    """A warning where the last test found one answer for everything."""
    tested = [line for line in lines if line.get("accuracy") is not None]
    if not tested or tested[-1].get(ONLY_CLASS) is None:
        return None
    return predicts_one_class(str(classes[tested[-1][ONLY_CLASS]]))
