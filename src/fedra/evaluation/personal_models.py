"""Each client's own model, on a test set with the client's own mixture of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.batches import Examples
from fedra.core.evaluate import portions
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.personalizer import Answers, Personalizer
from fedra.core.random import generator, key
from fedra.core.round import broadcast
from fedra.core.sharing import with_own
from fedra.core.tree import Tree
from fedra.core.view import Server
from fedra.data.partition import aligned_test
from fedra.errors import DataError
from fedra.runners.base import Runner, one_by_one

TESTED = 1000
"""The most examples a client's own test set has."""


@dataclass(frozen=True)
class PersonalModels:
    """Accuracies of the clients' own models and of the global model, on the same client-aligned test sets.

    `ways` has them by what was tried: lengths of own training ("after_1"), shares of a mixture. `own` is the
    personalizer's own way, after its longest training. A client whose own model is not finite, or does not answer with
    numbers, is not among them: argmax would find it a class all the same.
    """

    own: dict[int, float]
    shared: dict[int, float]
    ways: dict[str, dict[int, float]]

    @property
    def diverged(self) -> list[int]:
        """The clients that have no sound model of their own, by one way at least."""
        sound = [accuracies.keys() for accuracies in (self.own, *self.ways.values())]
        return [client for client in self.shared if not all(client in clients for clients in sound)]

    def figures(self) -> dict[str, float | None]:
        """Mean, standard deviation over clients and worst decile, as the papers print them; None of no client."""
        found = _figures("personalised_accuracy", self.own)
        for way, own in self.ways.items():
            found |= _figures(f"personalised_accuracy_{way}", own)
        return found | {"global_on_clients_accuracy": float(np.mean(list(self.shared.values())))}


def _figures(name: str, accuracies: dict[int, float]) -> dict[str, float | None]:
    names = (name, f"{name}_std", f"{name}_worst_decile")
    if not accuracies:
        return dict.fromkeys(names)
    values = np.array(list(accuracies.values()))
    return dict(zip(names, (float(values.mean()), float(values.std()), float(np.quantile(values, 0.1))), strict=True))


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


def personalised(
    job: Job,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    on_client: Callable[[int], None] = lambda count: None,
) -> PersonalModels:
    """Let every client make its own model of the server's final one and of what it remembers, and test both.

    `on_client` is told of every client that is done, once for each length of own training.
    """
    personalizer = job.algorithm.personalize
    assert personalizer is not None, "the algorithm has no personalizer"
    tests = {client: aligned_rows(job, client) for client in range(len(job.clients))}
    right = _right(job, server.weights)
    found: dict[str, dict[int, float]] = {}
    for epochs in personalizer.stages:
        stage = f"after_{epochs}" if len(personalizer.stages) > 1 else ""
        found[stage] = {}
        for client, weights in own_models(job, make_runner, server, memory, rounds, list(tests), epochs):
            if weights is not None:
                draw = generator(job.seed, "answers", client)
                answers = personalizer.answers(job.model, weights, job.clients[client], draw)
                for way, accuracy in _accuracies(job, client, answers, tests[client]).items():
                    of = found.setdefault("_".join(filter(None, (stage, way))), {})
                    of |= {} if accuracy is None else {client: accuracy}
            on_client(1)
    own = found[stage]
    shared = {client: float(right[rows].double().mean()) for client, rows in tests.items()}
    return PersonalModels(own, shared, {way: of for way, of in found.items() if way})


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
        targets = _targets(job, client)
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


def _targets(job: Job, client: int) -> Tensor:
    """The client's labels as the federation numbers them."""
    targets = job.clients[client].targets.cpu()
    return targets if job.owners is None else job.owners.holdings[client].cpu()[targets]


def aligned_rows(job: Job, client: int) -> Tensor:
    """The rows of the test set that follow the client's own mixture of classes, in no order.

    In order of class, a model that normalises by the batch's statistics would see one class at a time.
    """
    assert job.test is not None, "the job has no test set"
    rng = np.random.default_rng(key(job.seed, "aligned-test", client))
    rows = aligned_test(_targets(job, client).numpy(), job.test.targets.cpu().numpy(), rng=rng, size=TESTED)
    return torch.from_numpy(rng.permutation(rows))


@torch.no_grad()
def _accuracies(job: Job, client: int, answers: Answers, rows: Tensor) -> dict[str, float | None]:
    """The share of right answers, by way of answering; None where some scores are no numbers."""
    assert job.test is not None, "the job has no test set"
    test = Examples(job.test.inputs[rows], job.test.targets[rows], job.test.transform)
    classes = None if job.owners is None else job.owners.holdings[client].to(job.model.device)
    hits: dict[str, list[Tensor]] = {}
    sound: dict[str, list[Tensor]] = {}
    for start, end in portions(len(test)):
        inputs, targets = test.ready(job.model, start, end)
        for way, scores in answers(inputs).items():
            said = scores.argmax(dim=1)
            hits.setdefault(way, []).append((said if classes is None else classes[said]) == targets)
            sound.setdefault(way, []).append(scores.isfinite().all())
    shares = {way: float(torch.cat(each).double().mean()) for way, each in hits.items()}
    return {way: share if all(sound[way]) else None for way, share in shares.items()}


@torch.no_grad()
def _right(job: Job, weights: Weights) -> Tensor:
    """Which examples of the whole test set the global model gets right: clients' test sets are rows of it."""
    assert job.test is not None, "the job has no test set"
    weights = Weights(job.model.arrange(weights.params), job.model.arrange(weights.buffers))
    found = []
    for start, end in portions(len(job.test)):
        inputs, targets = job.test.ready(job.model, start, end)
        found.append(job.model.output(weights, inputs).logits.argmax(dim=1) == targets)
    return torch.cat(found).cpu()
