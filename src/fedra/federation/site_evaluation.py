"""Tests at a site on its held-out examples: what leaves are counts, and histograms of similarities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedra.core.batches import Examples
from fedra.core.evaluate import embed, evaluate, evaluation_batches
from fedra.core.model import Weights
from fedra.core.random import generator
from fedra.core.tree import Tree
from fedra.core.view import Server
from fedra.evaluation.personal_models import train_personal_models
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.site_job import SiteJob
from fedra.federation.wire import EvaluatedWords
from fedra.runners.base import Runner
from fedra.storage.checkpoint import save_model
from fedra.storage.trained_model import describe_input

BINS = 200
"""Bins of a histogram of cosine similarities, from -1 to 1."""


def evaluate_clients(job: SiteJob, origin: Weights, states: Mapping[int, Tree]) -> list[EvaluatedWords]:
    """Test each client's model, the received one with its own values, on its held-out examples."""
    found = []
    for client, state in states.items():
        if client not in job.tests:
            continue
        weights = job.algorithm.sharing.received(origin, state)
        counts = evaluate(job.model, weights, job.tests[client], job.classes_of(client))
        histograms = _histograms(job, weights, job.tests[client]) if job.own_classes is not None else {}
        found.append(
            EvaluatedWords(
                client=client,
                examples=int(counts.examples.sum()),
                correct=int(counts.correct.sum()),
                loss=counts.loss if torch.isfinite(torch.tensor(counts.loss)) else 0.0,
                **histograms,
            )
        )
    return found


def _histograms(job: SiteJob, weights: Weights, test: Examples) -> dict[str, Any]:
    """Count the similarities of all pairs of a client's held-out images, of one person and of two."""
    arranged = Weights(job.model.arrange(weights.params), job.model.arrange(weights.buffers))
    features = F.normalize(embed(job.model, arranged, test).double(), dim=1)
    same = test.targets[:, None] == test.targets
    above = torch.ones(len(test), len(test), dtype=torch.bool).triu(diagonal=1)
    scores = features @ features.T
    return {"genuine": _count(scores[same & above]), "impostor": _count(scores[~same & above])}


def _count(scores: Tensor) -> list[int]:
    bins = ((scores.clamp(-1, 1) + 1) / 2 * BINS).long().clamp(max=BINS - 1)
    counts: list[int] = torch.bincount(bins, minlength=BINS).tolist()
    return counts


def finish_clients(
    job: SiteJob,
    open_runner: Callable[[Any], Runner],
    origin: Weights,
    received: Tree,
    memories: Mapping[int, Tree],
    rounds: int,
    tested: Sequence[EvaluatedWords],
    plan: FederationPlan,
    folder: Path,
) -> list[EvaluatedWords]:
    """Save the final model at the site, if the plan shares it, and train, keep and test personal models."""
    about = {
        "model": plan.config.model.model_dump(),
        "classes": list(plan.schema.classes),
        "input": describe_input(plan.blank_dataset(job.classes)),
    }
    if plan.federation.share_model and job.own_classes is None:
        save_model(folder / "model.safetensors", origin, about)
    personalizer = job.algorithm.personalize
    if personalizer is None:
        return list(tested)
    server = Server(weights=origin, memory={})
    own: dict[int, int] = {}
    cohort = [one.client for one in tested]
    trained = train_personal_models(
        job, open_runner, server, lambda client: memories[client], rounds, cohort, received=received
    )
    for client, weights in trained:
        if weights is None:
            continue
        name = "own-model.safetensors" if len(cohort) == 1 else f"own-model-{client}.safetensors"
        save_model(folder / name, weights, about)
        answers = personalizer.answers(job.model, weights, job.clients[client], generator(job.seed, "answers", client))
        own[client] = _correct(job, answers, job.tests[client])
    return [one.model_copy(update={"own_correct": own.get(one.client)}) for one in tested]


@torch.no_grad()
def _correct(job: SiteJob, answers: Callable[[Tensor], dict[str, Tensor]], test: Examples) -> int:
    """Count the right answers of a personal model's default variant."""
    right = 0
    for start, end in evaluation_batches(len(test)):
        inputs, targets = test.ready(job.model, start, end)
        scores = answers(inputs)[""]
        right += int((scores.argmax(dim=1) == targets).sum())
    return right
