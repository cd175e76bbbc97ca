"""Each client's own model, on a test set with the client's own mixture of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.batches import Examples
from fedra.core.evaluate import portions
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.personalizer import Answers, Personalizer
from fedra.core.random import generator
from fedra.core.round import broadcast
from fedra.core.sharing import with_own
from fedra.core.tree import Tree
from fedra.core.view import Server
from fedra.errors import DataError
from fedra.evaluation.classifier_metrics import Metric, Probabilities
from fedra.evaluation.client_tests import TESTED, ClientTests, aligned_rows, labels_of
from fedra.evaluation.metrics import compute_metrics, mean_and_spread
from fedra.runners.base import Runner, one_by_one


@dataclass(frozen=True)
class PersonalModels:
    """Accuracies of the clients' own models and of the global model, on the same client-aligned test sets.

    `ways` has them by what was tried: lengths of own training ("after_1"), shares of a mixture. `own` is the
    personalizer's own way, after its longest training. A client whose own model is not finite, or does not answer with
    numbers, is not among them: argmax would find it a class all the same. `metrics` beyond accuracy are measured on the
    personalizer's own way, as `own_metrics`, and on the global model, by client and by the metric's key.
    """

    own: dict[int, float]
    shared: dict[int, float]
    ways: dict[str, dict[int, float]]
    metrics: tuple[Metric, ...] = ()
    own_metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    shared_metrics: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def diverged(self) -> list[int]:
        """The clients that have no sound model of their own, by one way at least."""
        sound = [accuracies.keys() for accuracies in (self.own, *self.ways.values())]
        return [client for client in self.shared if not all(client in clients for clients in sound)]

    def figures(self) -> dict[str, float | None]:
        """Mean, standard deviation over clients and worst decile, as the papers print them; None of no client."""
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
    """The job of the clients' own training after `rounds` rounds, by default the longest: same data, the personalizer's
    algorithm.
    """
    local = personalizer.training(job.local, rounds)
    local = replace(local, epochs=personalizer.stages[-1] if epochs is None else epochs)
    algorithm = personalizer.algorithm(job.algorithm)
    # Own training may have dropped terms whose parameters sharing speaks of.
    names = (*job.model.names, *(f"{part}." for part in algorithm.parts()))
    return replace(job, algorithm=replace(algorithm, sharing=algorithm.sharing.fitting(names)), local=local)


def personalized(
    job: Job,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    on_client: Callable[[int], None] = lambda count: None,
    metrics: Sequence[Metric] = (),
) -> PersonalModels:
    """Let every client make its own model of the server's final one and of what it remembers, and test both.

    `on_client` is told of every client that is done, once for each length of own training. `metrics` are measured
    in addition to accuracy.
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
        for client, weights in own_models(job, make_runner, server, memory, rounds, list(tests), epochs):
            if weights is not None:
                draw = generator(job.seed, "answers", client)
                answers = personalizer.answers(job.model, weights, job.clients[client], draw)
                for way, tested in _tested(job, client, answers, tests[client], bool(metrics)).items():
                    of = found.setdefault("_".join(filter(None, (stage, way))), {})
                    of |= {client: tested.accuracy} if tested.sound else {}
                    if metrics and tested.sound and way == "" and epochs == personalizer.stages[-1]:
                        own_metrics[client] = tested.figures(metrics, job.test.targets[tests[client]])
            on_client(1)
    ways = {way: of for way, of in found.items() if way}
    return PersonalModels(found[stage], shared.accuracies, ways, tuple(metrics), own_metrics, shared.metrics)


def own_models(
    job: Job,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    cohort: Sequence[int],
    epochs: int | None = None,
) -> Iterator[tuple[int, Weights | None]]:
    """The own models of some clients, one after the other, after so many epochs by themselves; by default the most.

    None stands for a model that is not finite, or whose training met a loss that was not.
    """
    personalizer, model = job.algorithm.personalize, job.model
    assert personalizer is not None, "the algorithm has no personalizer"
    length = personalizer.stages[-1] if epochs is None else epochs
    for client, trained in _trained(job, personalizer, length, make_runner, server, memory, rounds, cohort):
        if trained is None:
            yield client, None
            continue
        start = Weights(model.arrange(trained.params), model.arrange(trained.buffers))
        own = personalizer.own(start, model.arrange_tree(memory(client)))
        yield client, Weights(model.arrange(own.params), model.arrange(own.buffers)) if _is_finite(own) else None


def _is_finite(weights: Weights) -> bool:
    """Whether every entry is a number, by one look at the device."""
    return bool(torch.stack([value.isfinite().all() for group in weights for value in group.values()]).all())


def _trained(
    job: Job,
    personalizer: Personalizer,
    epochs: int,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    cohort: Sequence[int],
) -> Iterator[tuple[int, Weights | None]]:
    """Every client's weights after so many epochs by itself, None where a loss was not finite; without any epochs, the
    server's with its private ones.
    """
    own_job = personal_job(job, personalizer, rounds, epochs) if epochs else job
    sharing = own_job.algorithm.sharing
    common = sharing.common(server.weights)

    def start(client: int) -> Tree:
        kept = memory(client).get(sharing.name, {})
        return own_job.remembered(client, server.weights, {sharing.name: kept} if kept else {})

    if not epochs:
        yield from ((client, with_own(common, start(client).get(sharing.name, {}))) for client in cohort)
        return
    # What a dropped term brought along is the server's still: own training does not know it, and leaves it as it is.
    known = own_job.initial()
    sent = Weights(*({n: v for n, v in have.items() if n in names} for have, names in zip(common, known, strict=True)))

    def told(client: int) -> Tree:
        first = start(client).get(sharing.name, {})
        own = {name: value for name, value in first.items() if name in known.params or name in known.buffers}
        return {sharing.name: own} if own else {}

    runner = make_runner(own_job)
    try:
        received = broadcast(own_job.algorithm, server)
        for result in one_by_one(runner.train(rounds, sent, received, cohort, told)):
            upload = result.upload
            if upload.broken_step is not None:
                yield result.client, None
                continue
            params = {**common.params, **tree.add(sent.params, upload.delta)}
            own = start(result.client).get(sharing.name, {})
            own = own | result.memory.get(sharing.name, {}) | upload.extras.get(sharing.name, {})
            yield result.client, with_own(Weights(params, common.buffers | upload.buffers), own)
    finally:
        runner.close()


def refuse_untestable(job: Job) -> None:
    """Refuse, before hours of training, a client whose own test set would be empty, where there is a test set."""
    if job.test is None:
        return
    present = torch.unique(job.test.targets.cpu())
    for client in range(len(job.clients)):
        targets = labels_of(job, client)
        classes, counts = torch.unique(targets, return_counts=True)
        tested = torch.isin(classes, present)
        if not tested.any():
            raise DataError(
                f"client {client} has no class that the test set has, so that its own model could not be tested: use "
                "another partition, or raise the data set's test examples"
            )
        if not (TESTED * counts[tested] // len(targets)).any():
            raise DataError(
                f"each of the {int(tested.sum())} classes that client {client} shares with the test set is less than "
                f"1/{TESTED} of its examples, so that its own test set would be empty: spread the data over more "
                "clients, or leave its own model out"
            )


@dataclass(frozen=True)
class _Tested:
    """What a client's own model answers on its test set, in one way; `sound` where all scores are numbers."""

    accuracy: float
    sound: bool
    probabilities: Probabilities | None

    def figures(self, metrics: Sequence[Metric], targets: Tensor) -> dict[str, Any]:
        assert self.probabilities is not None, "the answers were not kept"
        return compute_metrics(metrics, targets, self.probabilities)


@torch.no_grad()
def _tested(job: Job, client: int, answers: Answers, rows: Tensor, keep: bool) -> dict[str, _Tested]:
    """The client's answers, by way of answering; with `keep`, the probability of every class of the federation."""
    assert job.test is not None, "the job has no test set"
    test = Examples(job.test.inputs[rows], job.test.targets[rows], job.test.transform)
    classes = None if job.owners is None else job.owners.holdings[client].to(job.model.device)
    hits: dict[str, list[Tensor]] = {}
    sound: dict[str, list[Tensor]] = {}
    kept: dict[str, list[Tensor]] = {}
    for start, end in portions(len(test)):
        inputs, targets = test.ready(job.model, start, end)
        for way, scores in answers(inputs).items():
            said = scores.argmax(dim=1)
            hits.setdefault(way, []).append((said if classes is None else classes[said]) == targets)
            sound.setdefault(way, []).append(scores.isfinite().all())
            if keep:
                kept.setdefault(way, []).append(_probabilities(job, scores.cpu().double(), classes))
    return {
        way: _Tested(
            float(torch.cat(each).double().mean()),
            all(sound[way]),
            torch.cat(kept[way]).numpy() if keep else None,
        )
        for way, each in hits.items()
    }


def _probabilities(job: Job, scores: Tensor, classes: Tensor | None) -> Tensor:
    """Scores of a client's classes as probabilities of all classes of the federation."""
    own = job.algorithm.personalize
    if own is None or not own.answers_are_probabilities:
        scores = scores.softmax(dim=1)
    scores = scores / scores.sum(dim=1, keepdim=True)  # float32 rows sum to 1 within its rounding alone
    if classes is None:
        return scores
    return scores.new_zeros(len(scores), job.classes).index_copy_(1, classes.cpu(), scores)
