"""The global model on every client's own mixture of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedra.core.evaluate import portions
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.random import key
from fedra.data.partition import aligned_test
from fedra.errors import DataError
from fedra.evaluation.classifier_metrics import METRICS, Metric
from fedra.evaluation.metrics import compute_metrics, mean_and_spread, probabilities_of

TESTED = 1000
"""The most examples a client's own test set has."""


def labels_of(job: Job, client: int) -> Tensor:
    """The client's labels as the federation numbers them."""
    targets = job.clients[client].targets.cpu()
    return targets if job.owners is None else job.owners.holdings[client].cpu()[targets]


def aligned_rows(job: Job, client: int) -> Tensor:
    """The rows of the test set that follow the client's own mixture of classes, in no order.

    In order of class, a model that normalizes by the batch's statistics would see one class at a time.
    """
    assert job.test is not None, "the job has no test set"
    rng = np.random.default_rng(key(job.seed, "aligned-test", client))
    rows = aligned_test(labels_of(job, client).numpy(), job.test.targets.cpu().numpy(), rng=rng, size=TESTED)
    return torch.from_numpy(rng.permutation(rows))


def testable_rows(job: Job) -> dict[int, Tensor]:
    """The test sets of all clients that have one: a client without any class of the test set has none."""
    found = {}
    for client in range(len(job.clients)):
        try:
            found[client] = aligned_rows(job, client)
        except DataError:
            continue
    return found


@dataclass(frozen=True)
class ClientTests:
    """The global model's accuracy, and further metrics by their keys, on each client's test set."""

    accuracies: dict[int, float]
    metrics: dict[int, dict[str, Any]]
    measured: tuple[Metric, ...] = ()

    @classmethod
    def of(cls, job: Job, weights: Weights, tests: Mapping[int, Tensor], metrics: Sequence[Metric] = ()) -> ClientTests:
        """One pass over the whole test set: the clients' test sets are rows of it."""
        assert job.test is not None, "the job has no test set"
        right, logits = _answers(job, weights, bool(metrics))
        accuracies = {client: float(right[rows].double().mean()) for client, rows in tests.items()}
        if logits is None:
            return cls(accuracies, {})
        probabilities, targets = probabilities_of(logits), job.test.targets.cpu()
        found = {
            client: compute_metrics(metrics, targets[rows], probabilities[rows.numpy()])
            for client, rows in tests.items()
        }
        return cls(accuracies, found, tuple(metrics))

    def lines(self, job: Job, tests: Mapping[int, Tensor]) -> list[dict[str, Any]]:
        """A line per client: its training examples, those it is tested on, and the figures."""
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

    def figures(self) -> dict[str, float | None]:
        """Mean, deviation and worst decile over the clients, for the summary."""
        name = "global_on_clients"
        found = mean_and_spread(f"{name}_accuracy", self.accuracies.values(), METRICS["accuracy"].higher)
        for metric in self.measured:
            values = (one[metric.key] for one in self.metrics.values())
            found |= mean_and_spread(f"{name}_{metric.key}", values, metric.higher)
        return found


@torch.no_grad()
def _answers(job: Job, weights: Weights, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Which examples of the test set the global model gets right and, with `keep`, its logits."""
    assert job.test is not None, "the job has no test set"
    weights = Weights(job.model.arrange(weights.params), job.model.arrange(weights.buffers))
    right, kept = [], []
    for start, end in portions(len(job.test)):
        inputs, targets = job.test.ready(job.model, start, end)
        logits = job.model.output(weights, inputs).logits
        right.append(logits.argmax(dim=1) == targets)
        kept += [logits.float().cpu()] if keep else []
    return torch.cat(right).cpu(), torch.cat(kept) if keep else None
