"""Evaluation of personal models on test sets with each client's own class distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.batches import Examples
from fedra.core.evaluate import evaluation_batches
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.personalizer import Answers, Personalizer
from fedra.core.random import generator
from fedra.core.round import broadcast
from fedra.core.sharing import with_client_values
from fedra.core.tree import Tree
from fedra.core.view import Server
from fedra.errors import DataError
from fedra.evaluation.classifier_metrics import Metric, Probabilities
from fedra.evaluation.client_tests import MAX_TEST_EXAMPLES, ClientTests, aligned_rows, labels_of
from fedra.evaluation.metrics import compute_metrics, mean_and_spread
from fedra.runners.base import Runner, iterate_results


@dataclass(frozen=True)
class PersonalModels:
    """Accuracies of the personal models and of the global model, on the same client-aligned test sets.

    `own` holds the accuracies of the personalizer's default variant after its longest training. `ways` holds those of
    all variants: numbers of epochs ("after_1") and mixing weights. A client whose model or logits are not finite is
    left out, because argmax would return a class anyway. `metrics` other than accuracy are computed for the default
    variant (`own_metrics`) and for the global model (`shared_metrics`), by client and by key.
    """

    own: dict[int, float]
    shared: dict[int, float]
    ways: dict[str, dict[int, float]]
    metrics: tuple[Metric, ...] = ()
    own_metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    shared_metrics: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def diverged(self) -> list[int]:
        """Clients whose personal model is not finite in at least one variant."""
        finite = [accuracies.keys() for accuracies in (self.own, *self.ways.values())]
        return [client for client in self.shared if not all(client in clients for clients in finite)]

    def summary(self) -> dict[str, float | None]:
        """Return mean, standard deviation and worst decile over clients, or None without any client."""
        found = mean_and_spread("personalized_accuracy", self.own.values())
        for way, own in self.ways.items():
            found |= mean_and_spread(f"personalized_accuracy_{way}", own.values())
        found["global_on_clients_accuracy"] = float(np.mean(list(self.shared.values())))
        for metric in self.metrics:
            key, higher = metric.key, metric.higher
            for name, of in (("personalized", self.own_metrics), ("global_on_clients", self.shared_metrics)):
                found |= mean_and_spread(f"{name}_{key}", (one[key] for one in of.values()), higher)
        return found


def personal_job(job: Job, personalizer: Personalizer, rounds: int, epochs: int | None = None) -> Job:
    """Return the job of personal training after `rounds` rounds: the same data with the personalizer's algorithm."""
    local = personalizer.training(job.local, rounds)
    local = replace(local, epochs=personalizer.stages[-1] if epochs is None else epochs)
    algorithm = personalizer.algorithm(job.algorithm)
    # Personal training may have dropped terms whose parameters sharing names.
    names = (*job.model.names, *(f"{part}." for part in algorithm.parts()))
    algorithm = replace(algorithm, sharing=algorithm.sharing.fitting(names), upload=None)  # nothing is sent
    return replace(job, algorithm=algorithm, local=local)


def personalized(
    job: Job,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    on_client: Callable[[int], None] = lambda count: None,
    metrics: Sequence[Metric] = (),
) -> PersonalModels:
    """Train every client's personal model from the global model and the client state, and evaluate both models.

    `on_client` is called after every client, once for each number of epochs. `metrics` are computed in addition to
    accuracy.
    """
    personalizer = job.algorithm.personalize
    assert personalizer is not None, "the algorithm has no personalizer"
    assert job.test is not None, "the job has no test set"
    tests = {client: aligned_rows(job, client) for client in range(len(job.clients))}
    shared = ClientTests.of(job, server.weights, tests, metrics)
    own_metrics: dict[int, dict[str, Any]] = {}
    found: dict[str, dict[int, float]] = {}
    for epochs in personalizer.stages:
        stage = f"after_{epochs}" if len(personalizer.stages) > 1 else ""
        found[stage] = {}
        for client, weights in train_personal_models(job, make_runner, server, memory, rounds, list(tests), epochs):
            if weights is not None:
                draw = generator(job.seed, "answers", client)
                answers = personalizer.answers(job.model, weights, job.clients[client], draw)
                for way, result in _evaluate_client(job, client, answers, tests[client], bool(metrics)).items():
                    accuracies = found.setdefault("_".join(filter(None, (stage, way))), {})
                    accuracies |= {client: result.accuracy} if result.finite else {}
                    if metrics and result.finite and way == "" and epochs == personalizer.stages[-1]:
                        own_metrics[client] = result.compute(metrics, job.test.targets[tests[client]])
            on_client(1)
    ways = {way: of for way, of in found.items() if way}
    return PersonalModels(found[stage], shared.accuracies, ways, tuple(metrics), own_metrics, shared.metrics)


def train_personal_models(
    job: Job,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    cohort: Sequence[int],
    epochs: int | None = None,
    received: Tree | None = None,
) -> Iterator[tuple[int, Weights | None]]:
    """Yield the personal models of some clients after `epochs` epochs, by default the longest training.

    The model is None if its weights or a training loss were not finite. `received` is what the server broadcast, for
    clients that do not know the server's state.
    """
    personalizer, model = job.algorithm.personalize, job.model
    assert personalizer is not None, "the algorithm has no personalizer"
    length = personalizer.stages[-1] if epochs is None else epochs
    for client, trained in _train_clients(
        job, personalizer, length, make_runner, server, memory, rounds, cohort, received
    ):
        if trained is None:
            yield client, None
            continue
        start = Weights(model.arrange(trained.params), model.arrange(trained.buffers))
        own = personalizer.own(start, model.arrange_tree(memory(client)))
        yield client, Weights(model.arrange(own.params), model.arrange(own.buffers)) if _is_finite(own) else None


def _is_finite(weights: Weights) -> bool:
    """Return whether every entry is finite, with a single synchronization with the device."""
    return bool(torch.stack([value.isfinite().all() for group in weights for value in group.values()]).all())


def _train_clients(
    job: Job,
    personalizer: Personalizer,
    epochs: int,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    cohort: Sequence[int],
    sent_extras: Tree | None = None,
) -> Iterator[tuple[int, Weights | None]]:
    """Yield every client's weights after personal training, or None if a loss was not finite.

    With zero epochs, these are the global weights with the client's private ones.
    """
    own_job = personal_job(job, personalizer, rounds, epochs) if epochs else job
    sharing = own_job.algorithm.sharing
    common = sharing.common(server.weights)

    def start(client: int) -> Tree:
        private = memory(client).get(sharing.name, {})
        return own_job.client_state(client, server.weights, {sharing.name: private} if private else {})

    if not epochs:
        yield from ((client, with_client_values(common, start(client).get(sharing.name, {}))) for client in cohort)
        return
    # Parameters of dropped terms stay in the global model: personal training neither knows nor changes them.
    known = own_job.initial()
    sent = Weights(*({n: v for n, v in have.items() if n in names} for have, names in zip(common, known, strict=True)))

    def client_state(client: int) -> Tree:
        first = start(client).get(sharing.name, {})
        own = {name: value for name, value in first.items() if name in known.params or name in known.buffers}
        return {sharing.name: own} if own else {}

    runner = make_runner(own_job)
    try:
        received = broadcast(own_job.algorithm, server) if sent_extras is None else sent_extras
        for result in iterate_results(runner.train(rounds, sent, received, cohort, client_state)):
            upload = result.upload
            if upload.broken_step is not None:
                yield result.client, None
                continue
            params = {**common.params, **tree.add(sent.params, upload.delta)}
            own = start(result.client).get(sharing.name, {})
            own = own | result.memory.get(sharing.name, {}) | upload.extras.get(sharing.name, {})
            yield result.client, with_client_values(Weights(params, common.buffers | upload.buffers), own)
    finally:
        runner.close()


def check_clients_testable(job: Job) -> None:
    """Raise before training if a client's test set would be empty."""
    if job.test is None:
        return
    present = torch.unique(job.test.targets.cpu())
    for client in range(len(job.clients)):
        targets = labels_of(job, client)
        classes, counts = torch.unique(targets, return_counts=True)
        tested = torch.isin(classes, present)
        if not tested.any():
            raise DataError(
                f"client {client} must have a class that is in the test set to evaluate its personal model, but it has "
                "none: use another partition, or a data set with more test examples"
            )
        if not (MAX_TEST_EXAMPLES * counts[tested] // len(targets)).any():
            raise DataError(
                f"client {client} must have a class of the test set with at least 1/{MAX_TEST_EXAMPLES} of its "
                f"examples, but each of the {int(tested.sum())} classes that they share is rarer, so its test set "
                "would be empty: use more clients, or an algorithm without personal models"
            )


@dataclass(frozen=True)
class _ClientResult:
    """Accuracy of one variant of a personal model, whether all logits were finite, and the probabilities."""

    accuracy: float
    finite: bool
    probabilities: Probabilities | None

    def compute(self, metrics: Sequence[Metric], targets: Tensor) -> dict[str, Any]:
        assert self.probabilities is not None, "the probabilities were not stored"
        return compute_metrics(metrics, targets, self.probabilities)


@torch.no_grad()
def _evaluate_client(job: Job, client: int, answers: Answers, rows: Tensor, keep: bool) -> dict[str, _ClientResult]:
    """Evaluate every variant of a personal model; with `keep`, store the probabilities of all global classes."""
    assert job.test is not None, "the job has no test set"
    test = Examples(job.test.inputs[rows], job.test.targets[rows], job.test.transform)
    classes = None if job.owners is None else job.owners.holdings[client].to(job.model.device)
    hits: dict[str, list[Tensor]] = {}
    finite: dict[str, list[Tensor]] = {}
    probabilities: dict[str, list[Tensor]] = {}
    for start, end in evaluation_batches(len(test)):
        inputs, targets = test.ready(job.model, start, end)
        for way, scores in answers(inputs).items():
            predicted = scores.argmax(dim=1)
            hits.setdefault(way, []).append((predicted if classes is None else classes[predicted]) == targets)
            finite.setdefault(way, []).append(scores.isfinite().all())
            if keep:
                probabilities.setdefault(way, []).append(_probabilities(job, scores.cpu().double(), classes))
    return {
        way: _ClientResult(
            float(torch.cat(each).double().mean()),
            all(finite[way]),
            torch.cat(probabilities[way]).numpy() if keep else None,
        )
        for way, each in hits.items()
    }


def _probabilities(job: Job, scores: Tensor, classes: Tensor | None) -> Tensor:
    """Convert scores of a client's classes to probabilities of all global classes."""
    own = job.algorithm.personalize
    if own is None or not own.answers_are_probabilities:
        scores = scores.softmax(dim=1)
    scores = scores / scores.sum(dim=1, keepdim=True)  # float32 rows sum to 1 only up to rounding
    if classes is None:
        return scores
    return scores.new_zeros(len(scores), job.classes).index_copy_(1, classes.cpu(), scores)
