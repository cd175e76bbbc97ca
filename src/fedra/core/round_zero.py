"""Round zero: before training, clients compute the initial rows of their classes.

A client runs the initial model on its own examples and uploads rows for its own classes, such as the mean feature of
each; no example leaves it. The server stores the rows as it does after a round. All clients take part, because server
rules use the rows of all classes. Nothing is trained, so the runner does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedra.core.capabilities import CollectsFirstRows
from fedra.core.evaluate import embed, ignore_progress
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.sharing import CLASSES
from fedra.core.tree import Params, Tree
from fedra.core.view import Server


@torch.no_grad()
def round_zero(job: Job, weights: Weights, done: Callable[[int], None] = ignore_progress) -> Weights:
    """The initial weights after round zero; `done` receives the number of examples of each finished batch."""
    arranged = Weights(job.model.arrange(weights.params), job.model.arrange(weights.buffers))
    if rules := _rules(job):
        assert job.owners is not None, "clients must own classes to upload rows"
        total: Tree = {}
        for client, classes in enumerate(job.owners.holdings):
            own = job.clients[client]
            features = embed(job.model, arranged, own, done)
            rows: Params = {CLASSES: classes}
            for rule in rules:
                rows |= rule.first_rows(features, own.targets, len(classes))
            total[str(client)] = rows
        server = Server(weights=weights, memory={})
        weights = job.algorithm.sharing.finish_round(server, server, total, job.population).weights
    if job.public is not None:
        features = embed(job.model, arranged, job.public.examples, done)
        rows = job.algorithm.data.first_public(features, job.public.examples.targets, job.public.classes)
        values = {name: value.to(weights.params[name]) for name, value in rows.items()}
        weights = Weights(weights.params | values, weights.buffers)
    return weights


def examples_in_round_zero(job: Job) -> int:
    """The number of examples that round zero processes."""
    own = job.population.examples if _rules(job) else 0
    return own + (0 if job.public is None else len(job.public.examples))


def _rules(job: Job) -> list[CollectsFirstRows]:
    return list(job.algorithm.with_capability(CollectsFirstRows).values())
