"""Each client's own model, on a test set with the client's own mixture of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedra.core import tree
from fedra.core.batches import Examples
from fedra.core.evaluate import evaluate
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.part import Personaliser
from fedra.core.random import key
from fedra.core.rates import constant
from fedra.core.round import broadcast
from fedra.core.tree import Params, Tree
from fedra.core.view import Server
from fedra.data.partition import aligned_test
from fedra.runners.base import Runner, one_by_one


@dataclass(frozen=True)
class Personalised:
    """Accuracies of the clients' own models and of the global model, on the same client-aligned test sets."""

    own: dict[int, float]
    shared: dict[int, float]

    def figures(self) -> dict[str, float]:
        """Mean, standard deviation over clients and worst decile, as the papers print them."""
        own, shared = np.array(list(self.own.values())), np.array(list(self.shared.values()))
        return {
            "personalised_accuracy": float(own.mean()),
            "personalised_accuracy_std": float(own.std()),
            "personalised_accuracy_worst_decile": float(np.quantile(own, 0.1)),
            "global_on_clients_accuracy": float(shared.mean()),
        }


def personal_job(job: Job, personaliser: Personaliser, rounds: int) -> Job:
    """The job of the clients' own training after `rounds` rounds: same data, the personaliser's algorithm."""
    lr = job.local.lr if personaliser.initial_rate else job.local.at(rounds).lr
    schedule = replace(job.local.schedule, epochs=personaliser.epochs)
    local = replace(job.local, schedule=schedule, lr=lr, lr_decay=1.0, rate=constant)
    return replace(job, algorithm=personaliser.algorithm(job.algorithm), local=local)


def personalised(
    job: Job,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    on_client: Callable[[], None] = lambda: None,
) -> Personalised:
    """Let every client make its own model of the server's final one, and test both."""
    personaliser = job.algorithm.personalise
    assert personaliser is not None, "the algorithm has no personaliser"
    assert job.test is not None, "the job has no test set"
    own_job = personal_job(job, personaliser, rounds)
    runner = make_runner(own_job)
    kept = own_job.algorithm.sharing.name
    own: dict[int, float] = {}
    shared: dict[int, float] = {}
    try:
        cohort = range(len(job.clients))
        start = {client: {kept: memory(client).get(kept, {})} for client in cohort if memory(client).get(kept)}
        received = broadcast(own_job.algorithm, server)
        results = runner.train(rounds, server.weights, received, cohort, lambda client: start.get(client, {}))
        for result in one_by_one(results):
            on_client()
            test = _aligned(job, result.client)
            params = tree.add(server.weights.params, result.upload.delta)
            buffers = {**server.weights.buffers, **result.upload.buffers}
            private: Params = result.memory.get(kept, {})
            mine = Weights({**params, **private}, buffers)
            own[result.client] = evaluate(job.model, mine, test, job.classes).accuracy
            shared[result.client] = evaluate(job.model, server.weights, test, job.classes).accuracy
    finally:
        runner.close()
    return Personalised(own, shared)


def _aligned(job: Job, client: int) -> Examples:
    assert job.test is not None
    rng = np.random.default_rng(key(job.seed, "aligned-test", client))
    rows = torch.from_numpy(aligned_test(job.clients[client].targets.numpy(), job.test.targets.numpy(), rng=rng))
    return Examples(job.test.inputs[rows], job.test.targets[rows], job.test.transform)
