"""Round zero: before training, clients compute the initial rows of their classes.

A client runs the initial model on its own examples and uploads rows for its own classes, such as the mean feature of
each; no example leaves it. The server stores the rows as it does after a round. All clients take part, because server
rules use the rows of all classes. Nothing is trained, so the runner does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from fedra.core.capabilities import CollectsFirstRows
from fedra.core.evaluate import embed, ignore_progress
from fedra.core.job import Job, ServerJob
from fedra.core.model import Weights
from fedra.core.sharing import CLASSES
from fedra.core.tree import Params, Tree
from fedra.core.view import Server


def round_zero(job: Job, weights: Weights, done: Callable[[int], None] = ignore_progress) -> Weights:
    """The initial weights after round zero; `done` receives the number of examples of each finished batch."""
    rows = (
        {client: first_rows_of(job, client, weights, done) for client in range(len(job.clients))} if _rules(job) else {}
    )
    return take_first_rows(job, weights, rows, done)


@torch.no_grad()
def first_rows_of(job: Job, client: int, weights: Weights, done: Callable[[int], None] = ignore_progress) -> Params:
    """What a client uploads in round zero: the rows of its own classes, computed with the initial weights."""
    own = job.clients[client]
    features = embed(job.model, _arranged(job, weights), own, done)
    rows: Params = {}
    for rule in _rules(job):
        rows |= rule.first_rows(features, own.targets, job.classes_of(client))
    return rows


@torch.no_grad()
def take_first_rows(
    job: ServerJob, weights: Weights, rows: Mapping[int, Params], done: Callable[[int], None] = ignore_progress
) -> Weights:
    """The server's part of round zero: the rows of all clients go to their classes, then public data are used."""
    if rows:
        assert job.owners is not None, "clients must own classes to upload rows"
        total: Tree = {str(client): {CLASSES: job.owners.holdings[client], **own} for client, own in rows.items()}
        server = Server(weights=weights, memory={})
        taken = job.algorithm.sharing.finish_round(server, server, total, job.population).weights
    else:
        taken = weights
    if job.public is None:
        return taken
    features = embed(job.model, _arranged(job, weights), job.public.examples, done)
    first = job.algorithm.data.first_public(features, job.public.examples.targets, job.public.classes)
    values = {name: value.to(taken.params[name]) for name, value in first.items()}
    return Weights(taken.params | values, taken.buffers)


def has_round_zero(job: ServerJob) -> bool:
    """Whether clients compute the first rows of their classes."""
    return bool(_rules(job))


def examples_in_round_zero(job: ServerJob) -> int:
    """The number of examples that round zero processes."""
    own = job.population.examples if _rules(job) else 0
    return own + (0 if job.public is None else len(job.public.examples))


def _rules(job: ServerJob) -> list[CollectsFirstRows]:
    return list(job.algorithm.with_capability(CollectsFirstRows).values())


def _arranged(job: ServerJob, weights: Weights) -> Weights:
    return Weights(job.model.arrange(weights.params), job.model.arrange(weights.buffers))
