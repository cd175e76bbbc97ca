"""Round zero: before training, clients look at their examples through the start model and tell what parts ask for.

A client runs the model over its own examples and sends rows for its own classes, such as the mean feature of each; no
example leaves it. The server puts the rows where they belong, as it does after a round. Every client is asked, also
one that will take part late, because the server's rules act on the rows of all. Nothing is trained, so that the
runner does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedra.core.capabilities import AsksClients
from fedra.core.evaluate import embed, nobody
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.sharing import CLASSES
from fedra.core.tree import Params, Tree
from fedra.core.view import Server


@torch.no_grad()
def round_zero(job: Job, weights: Weights, done: Callable[[int], None] = nobody) -> Weights:
    """The start as the clients' examples, and the public ones, would have it; `done` is told of examples looked at."""
    arranged = Weights(job.model.arrange(weights.params), job.model.arrange(weights.buffers))
    if asking := _asking(job):
        assert job.owners is not None, "rows that clients give belong to classes"
        told: Tree = {}
        for client, classes in enumerate(job.owners.holdings):
            own = job.clients[client]
            features = embed(job.model, arranged, own, done)
            rows: Params = {CLASSES: classes}
            for part in asking:
                rows |= part.first_rows(features, own.targets, len(classes))
            told[str(client)] = rows
        server = Server(weights=weights, memory={})
        weights = job.algorithm.sharing.finish_round(server, server, told, job.population).weights
    if job.public is not None:
        features = embed(job.model, arranged, job.public.examples, done)
        rows = job.algorithm.data.first_public(features, job.public.examples.targets, job.public.classes)
        known = {name: value.to(weights.params[name]) for name, value in rows.items()}
        weights = Weights(weights.params | known, weights.buffers)
    return weights


def looked_at(job: Job) -> int:
    """How many examples round zero looks at."""
    own = job.population.examples if _asking(job) else 0
    return own + (0 if job.public is None else len(job.public.examples))


def _asking(job: Job) -> list[AsksClients]:
    return list(job.algorithm.able(AsksClients).values())
