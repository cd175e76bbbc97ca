"""Evaluation of the global model on every client's own class distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedra.core.evaluate import evaluation_batches
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.random import key
from fedra.data.partition import aligned_test
from fedra.errors import DataError
from fedra.evaluation.classifier_metrics import METRICS, Metric
from fedra.evaluation.metrics import compute_metrics, compute_probabilities, mean_and_spread

MAX_TEST_EXAMPLES = 1000
"""Maximum number of examples in a client's test set."""


def labels_of(job: Job, client: int) -> Tensor:
    """Return the labels of a client as global class indices."""
    targets = job.clients[client].targets.cpu()
    return targets if job.owners is None else job.owners.holdings[client].cpu()[targets]


def aligned_rows(job: Job, client: int) -> Tensor:
    """Sample rows of the test set that follow the client's class distribution, in random order.

    Sorted by class, batches would hold one class each, which changes the result of models with batch statistics.
    """
    assert job.test is not None, "the job has no test set"
    rng = np.random.default_rng(key(job.seed, "aligned-test", client))
    rows = aligned_test(labels_of(job, client).numpy(), job.test.targets.cpu().numpy(), rng=rng, size=MAX_TEST_EXAMPLES)
    return torch.from_numpy(rng.permutation(rows))


def testable_rows(job: Job) -> dict[int, Tensor]:
    """Return the test rows of every client that shares at least one class with the test set."""
    found = {}
    for client in range(len(job.clients)):
        try:
            found[client] = aligned_rows(job, client)
        except DataError:
            continue
    return found


@dataclass(frozen=True)
class ClientTests:
    """Accuracy of the global model, and other metrics by key, on each client's test set."""

    accuracies: dict[int, float]
    metrics: dict[int, dict[str, Any]]
    measured: tuple[Metric, ...] = ()

    @classmethod
    def of(cls, job: Job, weights: Weights, tests: Mapping[int, Tensor], metrics: Sequence[Metric] = ()) -> ClientTests:
        """Evaluate the global model in one pass over the test set, whose rows form the clients' test sets."""
        assert job.test is not None, "the job has no test set"
        right, logits = _predict(job, weights, bool(metrics))
        accuracies = {client: float(right[rows].double().mean()) for client, rows in tests.items()}
        if logits is None:
            return cls(accuracies, {})
        probabilities, targets = compute_probabilities(logits), job.test.targets.cpu()
        found = {
            client: compute_metrics(metrics, targets[rows], probabilities[rows.numpy()])
            for client, rows in tests.items()
        }
        return cls(accuracies, found, tuple(metrics))

    def lines(self, job: Job, tests: Mapping[int, Tensor]) -> list[dict[str, Any]]:
        """Return one line per client: number of training examples, number of test examples, and metrics."""
        return [
            {
                "client": client,
                "examples": job.clients.size(client),
                "tested": len(tests.get(client, ())),
                "accuracy": self.accuracies.get(client),
                **self.metrics.get(client, dict.fromkeys(metric.key for metric in self.measured)),
            }
            for client in range(len(job.clients))
        ]

    def summary(self) -> dict[str, float | None]:
        """Return mean, standard deviation and worst decile over the clients, for the summary."""
        name = "global_on_clients"
        found = mean_and_spread(f"{name}_accuracy", self.accuracies.values(), METRICS["accuracy"].higher)
        for metric in self.measured:
            values = (one[metric.key] for one in self.metrics.values())
            found |= mean_and_spread(f"{name}_{metric.key}", values, metric.higher)
        return found


@torch.no_grad()
def _predict(job: Job, weights: Weights, with_logits: bool) -> tuple[Tensor, Tensor | None]:
    """Return which test examples the global model classifies correctly and, on request, its logits."""
    assert job.test is not None, "the job has no test set"
    weights = Weights(job.model.arrange(weights.params), job.model.arrange(weights.buffers))
    right, all_logits = [], []
    for start, end in evaluation_batches(len(job.test)):
        inputs, targets = job.test.ready(job.model, start, end)
        logits = job.model.output(weights, inputs).logits
        right.append(logits.argmax(dim=1) == targets)
        all_logits += [logits.float().cpu()] if with_logits else []
    return torch.cat(right).cpu(), torch.cat(all_logits) if with_logits else None
