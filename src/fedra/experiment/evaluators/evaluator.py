"""Evaluators of the global model after a round, and classification; each other protocol has its own file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedra.config.schema import Protocol
from fedra.core.evaluate import Counts
from fedra.core.job import ServerJob
from fedra.core.model import Weights
from fedra.data import Dataset
from fedra.errors import ConfigError
from fedra.evaluation.classifier_metrics import Metric
from fedra.evaluation.metrics import compute_extra_metrics
from fedra.experiment.evaluators.round_summary import ONLY_CLASS
from fedra.runners.base import Evaluation, Runner


@dataclass(frozen=True)
class EvaluationOutcome:
    """The result of a test: metrics for the round's record, and the counts of a classification."""

    metrics: dict[str, Any] = field(default_factory=lambda: {"accuracy": None, "loss": None})
    counts: Counts | None = None
    ready: ClassVar[bool] = True

    def outcome(self) -> EvaluationOutcome:
        return self


@dataclass(frozen=True)
class PendingEvaluation:
    """A test that is still running, possibly alongside the next round."""

    evaluation: Evaluation
    targets: Tensor
    metrics: tuple[Metric, ...] = ()

    @property
    def ready(self) -> bool:
        return self.evaluation.ready

    def outcome(self) -> EvaluationOutcome:
        counts = self.evaluation.counts()
        figures = {"accuracy": counts.accuracy, "loss": counts.mean_loss}
        figures |= compute_extra_metrics(self.metrics, self.targets, counts.logits)
        hint = {} if counts.only_answer is None else {ONLY_CLASS: counts.only_answer}
        return EvaluationOutcome(figures | hint, replace(counts, logits=None))


RoundTest = EvaluationOutcome | PendingEvaluation
"""A test that is finished or still running."""

Evaluator = Callable[[ServerJob, Runner, Weights], RoundTest]


@dataclass(frozen=True)
class Classification:
    """Accuracy and other metrics on the test or validation examples, which the runner distributes.

    Metrics other than accuracy need a job with `keep_scores`.
    """

    metrics: tuple[Metric, ...] = ()

    def __call__(self, job: ServerJob, runner: Runner, weights: Weights) -> RoundTest:
        if job.evaluated_examples is None:
            return EvaluationOutcome()
        return PendingEvaluation(runner.start_evaluation(weights), job.evaluated_examples.targets, self.metrics)


classification = Classification()
"""Accuracy and loss only."""


def choose_protocol(protocol: Protocol, dataset: Dataset) -> Protocol:
    """Resolve "auto": verification if all pairs show unseen identities, and classification otherwise."""
    if protocol == "verification" and dataset.pairs is None:
        raise ConfigError(
            f"evaluation.protocol = 'verification' needs pairs, got none in the data set '{dataset.name}': use a "
            "face data "
            "set with test_identities or verify"
        )
    if protocol == "clients" and not len(dataset.known_test):
        raise ConfigError(
            "evaluation.protocol = 'clients' needs test images of the training identities, got none in the data set "
            f"'{dataset.name}': raise data.test_fraction"
        )
    if protocol == "classification" and len(dataset.test) and not len(dataset.known_test):
        raise ConfigError(
            "evaluation.protocol = 'classification' needs test images of the training classes, got none in the "
            "data set "
            f"'{dataset.name}': raise data.test_fraction, or use verification"
        )
    if protocol != "auto":
        return protocol
    return "verification" if _pairs_are_unseen(dataset) else "classification"


def _pairs_are_unseen(dataset: Dataset) -> bool:
    if dataset.pairs is None:
        return False
    rows = torch.cat([dataset.pairs.first, dataset.pairs.second])
    return bool((dataset.test.targets[rows] >= len(dataset.classes)).all())
