"""Who tests the server's model after a round: right answers on known classes, or pairs of strangers told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedra.config.schema import Protocol
from fedra.core.batches import Examples, InputTransform
from fedra.core.evaluate import Counts, embed
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.data import Dataset
from fedra.errors import ConfigError, DataError, RunFailed
from fedra.evaluation.classifier_metrics import Metric
from fedra.evaluation.metrics import figures_of
from fedra.experiment.evaluators.round_summary import ONLY_CLASS
from fedra.faces.metrics import Scores, verify
from fedra.faces.metrics.collapse import give_directions
from fedra.runners.base import Evaluation, Runner


@dataclass(frozen=True)
class Verdict:
    """What a test found: figures for the round's line, and the counts behind them where answers were counted."""

    figures: dict[str, Any] = field(default_factory=lambda: {"accuracy": None, "loss": None})
    counts: Counts | None = None
    ready: ClassVar[bool] = True

    def verdict(self) -> Verdict:
        return self


@dataclass(frozen=True)
class Counting:
    """A test whose answers are still being counted, perhaps beside the next round."""

    evaluation: Evaluation
    targets: Tensor
    metrics: tuple[Metric, ...] = ()

    @property
    def ready(self) -> bool:
        return self.evaluation.ready

    def verdict(self) -> Verdict:
        counts = self.evaluation.counts()
        figures = {"accuracy": counts.accuracy, "loss": counts.mean_loss}
        figures |= figures_of(self.metrics, self.targets, counts.logits)
        hint = {} if counts.only_answer is None else {ONLY_CLASS: counts.only_answer}
        return Verdict(figures | hint, replace(counts, logits=None))


Trial = Verdict | Counting
"""A test that is over, or one that goes on."""

Judge = Callable[[Job, Runner, Weights], Trial]


@dataclass(frozen=True)
class Classification:
    """Right answers, and other metrics, on the examples that rounds are tested on, which the runner shares out.

    Metrics beyond accuracy need a job that keeps scores.
    """

    metrics: tuple[Metric, ...] = ()

    def __call__(self, job: Job, runner: Runner, weights: Weights) -> Trial:
        if job.judged is None:
            return Verdict()
        return Counting(runner.begin_evaluation(weights), job.judged.targets, self.metrics)


classification = Classification()
"""The share of right answers and the loss alone."""


class VerificationJudge:
    """Ten-fold accuracy and AUROC on a data set's pairs, whose images are embedded in this process, not mirrored."""

    def __init__(self, dataset: Dataset, transform: InputTransform) -> None:
        assert dataset.pairs is not None, "the data set has no pairs"
        pairs = dataset.pairs
        rows, places = torch.unique(torch.stack([pairs.first, pairs.second]), return_inverse=True)
        self._images = Examples(dataset.test.inputs[rows], dataset.test.targets[rows], transform).kept()
        self._first, self._second = places
        self._same = pairs.same

    def __call__(self, job: Job, runner: Runner, weights: Weights) -> Verdict:
        arranged = Weights(*(job.model.arrange(values) for values in weights))
        features = embed(job.model, arranged, self._images)
        return Verdict(self.figures(features, job.model.precision.passes))

    def figures(self, features: Tensor, passes: torch.dtype = torch.float32) -> dict[str, Any]:
        """Of the embeddings of all images; those that are zero are counted, for they are unlike all others.

        Where embeddings have collapsed, there are no figures but the reason. `passes` is the type of their network.
        """
        features, lost, collapsed = give_directions(features, passes)
        told: dict[str, Any] = {"zero_embeddings": lost} if lost else {}
        if collapsed is not None:
            return {"accuracy": None, "loss": None, "auroc": None, **told, "collapsed": collapsed}
        first, second = features[self._first], features[self._second]
        try:
            accuracy = verify(first, second, self._same).accuracy
            auroc = Scores.of_pairs(torch.cosine_similarity(first.double(), second.double()), self._same).auroc()
        except DataError as error:
            raise RunFailed(f"the model cannot be verified: {error}") from None
        return {"accuracy": accuracy, "loss": None, "auroc": auroc, **told}


def choose_protocol(protocol: Protocol, dataset: Dataset) -> Protocol:
    """What "auto" stands for: verification where all pairs compare strangers, else classification."""
    if protocol == "verification" and dataset.pairs is None:
        raise ConfigError(
            f"evaluation.protocol = 'verification' needs pairs, and the data set '{dataset.name}' has none: take one "
            "of faces, with test_identities or verify"
        )
    if protocol == "clients" and not len(dataset.known_test):
        raise ConfigError(
            "evaluation.protocol = 'clients' needs held-out images of the people that are trained, and the data set "
            f"'{dataset.name}' has none: raise data.test_fraction"
        )
    if protocol == "classification" and len(dataset.test) and not len(dataset.known_test):
        raise ConfigError(
            "evaluation.protocol = 'classification' needs test images of the classes that are trained, and the data "
            f"set '{dataset.name}' has none: raise data.test_fraction, or verify"
        )
    if protocol != "auto":
        return protocol
    return "verification" if _pairs_are_strangers(dataset) else "classification"


def _pairs_are_strangers(dataset: Dataset) -> bool:
    if dataset.pairs is None:
        return False
    shown = torch.cat([dataset.pairs.first, dataset.pairs.second])
    return bool((dataset.test.targets[shown] >= len(dataset.classes)).all())
