"""The tests that sites make of the global model, as the coordinator adds them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedra.core.job import ServerJob
from fedra.core.model import Weights
from fedra.experiment.evaluators.evaluator import EvaluationOutcome, Evaluator
from fedra.federation.federated_runner import FederatedRunner
from fedra.federation.wire import EvaluatedWords
from fedra.runners.base import Runner

SiteTest = list[EvaluatedWords] | str
"""The tests of a site's clients, or the reason why there are none."""


@dataclass
class SiteEvaluator:
    """Asks the sites to test the model on their held-out data.

    With `own`, which tests it on the coordinator's set, metrics have the meaning that they have in the simulator, and
    those of the sites are prefixed with `sites_`.
    """

    own: Evaluator | None = None

    def __call__(self, job: ServerJob, runner: Runner, weights: Weights) -> EvaluationOutcome:
        assert isinstance(runner, FederatedRunner), "only a federation has sites"
        found = runner.ask_tests(runner.round, weights, {})
        runner.note_tests(found)
        pooled = pool_tests(found)
        if self.own is None:
            return EvaluationOutcome(pooled)
        mine = self.own(job, runner, weights).outcome()
        return EvaluationOutcome(mine.metrics | prefix_tests(pooled))


def pool_tests(found: Mapping[str, SiteTest]) -> dict[str, Any]:
    """Return the share of right answers over all sites' held-out examples, and the mean and the worst site.

    Where sites send histograms of similarities, accuracy is 1 minus the equal error rate of all of them together.
    """
    tested = {site: tests for site, tests in found.items() if not isinstance(tests, str) and tests}
    every = [one for tests in tested.values() for one in tests]
    if not every:
        return {"accuracy": None, "loss": None}
    accuracies = [accuracy_of(tests) for tests in tested.values()]
    spread = {"sites_mean_accuracy": float(np.mean(accuracies)), "sites_worst_accuracy": min(accuracies)}
    pooled: dict[str, Any] = {"accuracy": accuracy_of(every), "loss": _loss(every), **spread}
    genuine, impostor = (_sum(every, key) for key in ("genuine", "impostor"))
    if genuine.sum() and impostor.sum():
        eer, auroc = rates_of(genuine, impostor)
        pooled |= {"accuracy": 1 - eer, "closed_set_accuracy": pooled["accuracy"], "eer": eer, "auroc": auroc}
    return pooled


def prefix_tests(pooled: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sites' metrics under names that say whose they are."""
    return {key if key.startswith("sites_") else f"sites_{key}": value for key, value in pooled.items()}


def accuracy_of(tests: Sequence[EvaluatedWords]) -> float:
    """Return the share of right answers."""
    return sum(one.correct for one in tests) / max(sum(one.examples for one in tests), 1)


def rates_of(genuine: np.ndarray, impostor: np.ndarray) -> tuple[float, float]:
    """Return the equal error rate and the AUROC of two histograms, to the width of a bin."""
    accepted_genuine = genuine[::-1].cumsum()[::-1] / genuine.sum()
    accepted_impostor = impostor[::-1].cumsum()[::-1] / impostor.sum()
    miss, false = np.append(1 - accepted_genuine, 1.0), np.append(accepted_impostor, 0.0)
    best = int(np.abs(miss - false).argmin())
    below = impostor.cumsum() - impostor
    auroc = float((genuine * (below + impostor / 2)).sum() / (genuine.sum() * impostor.sum()))
    return float((miss[best] + false[best]) / 2), auroc


def _loss(tests: Sequence[EvaluatedWords]) -> float:
    return sum(one.loss for one in tests) / max(sum(one.examples for one in tests), 1)


def _sum(tests: Sequence[EvaluatedWords], key: str) -> np.ndarray:
    counts = [getattr(one, key) for one in tests if getattr(one, key)]
    width = max(map(len, counts), default=0)
    return np.sum([np.pad(one, (0, width - len(one))) for one in counts], axis=0) if counts else np.zeros(0)
