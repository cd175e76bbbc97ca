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
from fedra.core.personaliser import Answers, Personaliser
from fedra.core.random import generator, key
from fedra.core.round import broadcast, with_own
from fedra.core.tree import Tree
from fedra.core.view import Server
from fedra.data.partition import aligned_test
from fedra.errors import DataError
from fedra.runners.base import Runner, one_by_one


@dataclass(frozen=True)
class Personalised:
    """Accuracies of the clients' own models and of the global model, on the same client-aligned test sets.

    `ways` has them by what was tried: lengths of own training ("after_1"), shares of a mixture. `own` is the
    personaliser's own way, after its longest training.
    """

    own: dict[int, float]
    shared: dict[int, float]
    ways: dict[str, dict[int, float]]

    def figures(self) -> dict[str, float]:
        """Mean, standard deviation over clients and worst decile, as the papers print them."""
        found = _figures("personalised_accuracy", self.own)
        for way, own in self.ways.items():
            found |= _figures(f"personalised_accuracy_{way}", own)
        return found | {"global_on_clients_accuracy": float(np.mean(list(self.shared.values())))}


def _figures(name: str, accuracies: dict[int, float]) -> dict[str, float]:
    values = np.array(list(accuracies.values()))
    return {
        name: float(values.mean()),
        f"{name}_std": float(values.std()),
        f"{name}_worst_decile": float(np.quantile(values, 0.1)),
    }


def personal_job(job: Job, personaliser: Personaliser, rounds: int, epochs: int | None = None) -> Job:
    """The job of the clients' own training after `rounds` rounds, by default the longest: same data, the personaliser's
    algorithm.
    """
    local = personaliser.training(job.local, rounds)
    schedule = replace(local.schedule, epochs=personaliser.stages[-1] if epochs is None else epochs)
    return replace(job, algorithm=personaliser.algorithm(job.algorithm), local=replace(local, schedule=schedule))


def personalised(
    job: Job,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    on_client: Callable[[int], None] = lambda count: None,
) -> Personalised:
    """Let every client make its own model of the server's final one and of what it remembers, and test both.

    `on_client` is told of every client that is done, once for each length of own training.
    """
    personaliser = job.algorithm.personalise
    assert personaliser is not None, "the algorithm has no personaliser"
    tests = {client: aligned_rows(job, client) for client in range(len(job.clients))}
    right = _right(job, server.weights)
    found: dict[str, dict[int, float]] = {}
    for epochs in personaliser.stages:
        stage = f"after_{epochs}" if len(personaliser.stages) > 1 else ""
        for client, weights in own_models(job, make_runner, server, memory, rounds, list(tests), epochs):
            draw = generator(job.seed, "answers", client)
            answers = personaliser.answers(job.model, weights, job.clients[client], draw)
            for way, accuracy in _accuracies(job, client, answers, tests[client]).items():
                found.setdefault("_".join(filter(None, (stage, way))), {})[client] = accuracy
            on_client(1)
    own = found[stage]
    shared = {client: float(right[rows].double().mean()) for client, rows in tests.items()}
    return Personalised(own, shared, {way: of for way, of in found.items() if way})


def own_models(
    job: Job,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    cohort: Sequence[int],
    epochs: int | None = None,
) -> Iterator[tuple[int, Weights]]:
    """The own models of some clients, one after the other, after so many epochs by themselves; by default the most."""
    personaliser, model = job.algorithm.personalise, job.model
    assert personaliser is not None, "the algorithm has no personaliser"
    length = personaliser.stages[-1] if epochs is None else epochs
    for client, trained in _trained(job, personaliser, length, make_runner, server, memory, rounds, cohort):
        start = Weights(model.arrange(trained.params), model.arrange(trained.buffers))
        own = personaliser.own(start, model.arrange_tree(memory(client)))
        yield client, Weights(model.arrange(own.params), model.arrange(own.buffers))


def _trained(
    job: Job,
    personaliser: Personaliser,
    epochs: int,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    cohort: Sequence[int],
) -> Iterator[tuple[int, Weights]]:
    """Every client's weights after so many epochs by itself; without any, the server's with its private ones."""
    own_job = personal_job(job, personaliser, rounds, epochs) if epochs else job
    sharing = own_job.algorithm.sharing
    common = sharing.common(server.weights)

    def start(client: int) -> Tree:
        kept = memory(client).get(sharing.name, {})
        return own_job.remembered(client, server.weights, {sharing.name: kept} if kept else {})

    if not epochs:
        yield from ((client, with_own(common, start(client).get(sharing.name, {}))) for client in cohort)
        return
    runner = make_runner(own_job)
    try:
        received = broadcast(own_job.algorithm, server)
        for result in one_by_one(runner.train(rounds, common, received, cohort, start)):
            upload = result.upload
            params = tree.add(common.params, upload.delta)
            own = start(result.client).get(sharing.name, {})
            own = own | result.memory.get(sharing.name, {}) | upload.extras.get(sharing.name, {})
            yield result.client, with_own(Weights(params, common.buffers | upload.buffers), own)
    finally:
        runner.close()


def refuse_untestable(job: Job) -> None:
    """Refuse, before hours of training, a client whose classes have no examples in the test set, where there is one."""
    if job.test is None:
        return
    present = set(torch.unique(job.test.targets).tolist())
    for client in range(len(job.clients)):
        if not present & set(torch.unique(_targets(job, client)).tolist()):
            raise DataError(
                f"client {client} has no class that the test set has, so that its own model could not be tested: use "
                "another partition, or raise the data set's test examples"
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
    rows = aligned_test(_targets(job, client).numpy(), job.test.targets.cpu().numpy(), rng=rng)
    return torch.from_numpy(rng.permutation(rows))


@torch.no_grad()
def _accuracies(job: Job, client: int, answers: Answers, rows: Tensor) -> dict[str, float]:
    """The share of right answers, by way of answering."""
    assert job.test is not None, "the job has no test set"
    test = Examples(job.test.inputs[rows], job.test.targets[rows], job.test.transform)
    classes = None if job.owners is None else job.owners.holdings[client].to(job.model.device)
    hits: dict[str, list[Tensor]] = {}
    for start, end in portions(len(test)):
        inputs, targets = test.ready(job.model, start, end)
        for way, scores in answers(inputs).items():
            said = scores.argmax(dim=1)
            hits.setdefault(way, []).append((said if classes is None else classes[said]) == targets)
    return {way: float(torch.cat(each).double().mean()) for way, each in hits.items()}


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
