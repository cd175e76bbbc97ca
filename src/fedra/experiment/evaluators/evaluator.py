"""Evaluators of the global model after a round: classification or verification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedra.config.schema import Protocol
from fedra.core.batches import Examples, InputTransform
from fedra.core.evaluate import Counts, embed
from fedra.core.job import ServerJob
from fedra.core.model import Weights
from fedra.data import Dataset
from fedra.errors import ConfigError, DataError, RunFailed
from fedra.evaluation.classifier_metrics import Metric
from fedra.evaluation.metrics import compute_extra_metrics
from fedra.experiment.evaluators.round_summary import ONLY_CLASS
from fedra.faces.metrics import Scores, verify
from fedra.faces.metrics.collapse import separate_zero_embeddings
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


class VerificationEvaluator:
    """Ten-fold accuracy and AUROC on a data set's pairs, embedded in this process without mirroring."""

    def __init__(self, dataset: Dataset, transform: InputTransform) -> None:
        assert dataset.pairs is not None, "the data set has no pairs"
        pairs = dataset.pairs
        rows, indices = torch.unique(torch.stack([pairs.first, pairs.second]), return_inverse=True)
        self._images = Examples(dataset.test.inputs[rows], dataset.test.targets[rows], transform).kept()
        self._first, self._second = indices
        self._same = pairs.same

    def __call__(self, job: ServerJob, runner: Runner, weights: Weights) -> EvaluationOutcome:
        arranged = Weights(*(job.model.arrange(values) for values in weights))
        features = embed(job.model, arranged, self._images)
        return EvaluationOutcome(self.metrics(features, job.model.precision.passes))

    def metrics(self, features: Tensor, passes: torch.dtype = torch.float32) -> dict[str, Any]:
        """Compute the metrics of the embeddings of all images, and count embeddings that are zero.

        If embeddings have collapsed, the metrics are None and the reason is returned. `passes` is the network's type.
        """
        features, zeros, collapsed = separate_zero_embeddings(features, passes)
        notes: dict[str, Any] = {"zero_embeddings": zeros} if zeros else {}
        if collapsed is not None:
            return {"accuracy": None, "loss": None, "auroc": None, **notes, "collapsed": collapsed}
        first, second = features[self._first], features[self._second]
        try:
            accuracy = verify(first, second, self._same).accuracy
            auroc = Scores.of_pairs(torch.cosine_similarity(first.double(), second.double()), self._same).auroc()
        except DataError as error:
            raise RunFailed(f"the model cannot be verified: {error}") from None
        return {"accuracy": accuracy, "loss": None, "auroc": auroc, **notes}


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
