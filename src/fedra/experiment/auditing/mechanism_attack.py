"""Canaries through the mechanism of a private run: its own clip, sampling and noise, without training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedra.algorithms import fedavg
from fedra.console import steps
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model, Weights
from fedra.core.private_steps import add_noise, private_steps
from fedra.core.random import key
from fedra.core.tree import Params
from fedra.core.view import Batch, Client, Population, View
from fedra.experiment.auditing.audit_target import AuditTarget, UnfitAttack
from fedra.experiment.private_mechanism import sampling_rate
from fedra.models.recognition_model import RecognitionModel
from fedra.parts.private import PrivateMean
from fedra.parts.private_gradient import PrivateGradient
from fedra.privacy.accounting import Mechanism
from fedra.privacy.audit.canaries import CanaryScores, judge_canaries, run_canaries
from fedra.privacy.audit.findings import Finding
from fedra.privacy.audit.inserted_canaries import judge_inserted
from fedra.privacy.client_level import ClipAndNoise, PrivateSum
from fedra.privacy.secret import Secret

CHUNK = 250
"""Canary examples that are differentiated at once."""
ROWS = "rows"
"""Name of the only parameter of the model that canary examples train: an example's gradient is the example itself."""


def attack_mechanism(target: AuditTarget) -> tuple[Finding, CanaryScores]:
    """Measure epsilon with canary clients or canary examples, next to the accountant's."""
    stated, seed = target.guarantee, target.settings.seed
    mean, rule = target.job.algorithm.combine, private_steps(target.job.algorithm)
    if not stated:
        raise UnfitAttack("it needs a run with differential privacy")
    releases, delta = int(stated["releases"]), float(stated["delta"])
    notes: list[str] = []
    if isinstance(mean, PrivateMean):
        scores = run_client_canaries(mean, releases, sampling_rate(target.config), seed, target)
        accounted = float(stated.get("epsilon", stated.get("epsilon_if_secret", 0.0)))
        if target.config.privacy.where == "clients":
            notes.append("noise by the clients is replaced by one draw of the same variance")
        if target.config.privacy.band > 1:
            notes.append("correlated noise is replaced by independent noise in the rounds of one client")
    elif isinstance(rule, PrivateGradient):
        rate = float(stated["rate"])
        scores = run_example_canaries(rule, releases, rate, seed, target)
        accounted = Mechanism(rule.noise, rate).epsilon(releases, delta)
        notes.append(f"{releases} steps with examples sampled at {rate:.3g}: the most of any client, and the largest")
    else:
        raise UnfitAttack("it needs a run whose sum or whose steps are noised")
    found = judge_canaries(scores, accounted, delta, str(stated.get("unit", "all data of one client")), seed)
    return found.with_details(notes=tuple(notes)), scores


def attack_own_canaries(target: AuditTarget) -> Iterator[Finding]:
    """Judge the canaries that took part in the run itself, if any did."""
    stated = target.guarantee
    if "canaries" in stated:
        accounted = float(stated.get("epsilon", stated.get("epsilon_if_secret", 0.0)))
        yield judge_inserted(stated["canaries"], accounted, float(stated["delta"]), target.settings.seed)


def run_client_canaries(
    part: PrivateMean, releases: int, rate: float, seed: int = 0, target: AuditTarget | None = None
) -> CanaryScores:
    """Send canary clients through the sum that a private mean releases."""
    secret = Secret.from_seed(key(seed, "audit mechanism"))
    deviation = part.sum_noise * part.clip

    def mechanism(release: int, vectors: Tensor) -> tuple[Tensor, float]:
        numbers = ClipAndNoise(clip=part.clip, noise=part.sum_noise, divisor=part.expected, expected=part.expected)
        total = PrivateSum(numbers, vectors.shape[1], secret, release)
        if len(vectors):
            total.add(vectors, [1.0] * len(vectors))
        return total.finish().total, deviation

    with steps(None if target is None else target.console, "canaries", releases) as done, torch.no_grad():
        return run_canaries(mechanism, releases, rate=rate, clip=lambda release: part.clip, seed=seed, done=done)


def run_example_canaries(
    rule: PrivateGradient, releases: int, rate: float, seed: int = 0, target: AuditTarget | None = None
) -> CanaryScores:
    """Send canary examples through the steps of a private gradient: its own clip, sum and noise."""
    secret = Secret.from_seed(key(seed, "audit mechanism"))
    rule = replace(rule, chunk=CHUNK)
    algorithm = replace(fedavg(), gradient=(rule,))
    examples = rule.batch or 1
    deviation = rule.noise_deviation(examples)

    def mechanism(release: int, vectors: Tensor) -> tuple[Tensor, float]:
        gradient = _step(rule, vectors, examples)
        add_noise(algorithm, gradient, secret, release, examples)
        return gradient[ROWS], deviation

    with steps(None if target is None else target.console, "canaries", releases) as done, torch.no_grad():
        return run_canaries(mechanism, releases, rate=rate, clip=lambda release: rule.clip, seed=seed, done=done)


def _step(rule: PrivateGradient, vectors: Tensor, examples: int) -> Params:
    """The gradient of a step on a model whose loss is the inner product of its weights with the example."""
    params = {ROWS: torch.zeros(vectors.shape[1])}
    if not len(vectors):
        return params
    weights = Weights(params, {})
    client = Client(
        origin=weights,
        received={},
        memory={},
        examples=examples,
        trained=(ROWS,),
        label_counts=torch.tensor([examples]),
        optimizer=LocalTraining().at(0),
        population=Population(clients=1, examples=examples),
        start=weights,
    )
    model = Model(RecognitionModel(nn.Identity(), nn.Linear(1, 1)))
    batch = Batch(vectors, torch.zeros(len(vectors), dtype=torch.int64))
    view = View(model=model, client=client, batch=batch, buffers={}, teachers={})

    def inner(params: Params) -> Params:
        view.trace.loss = (params[ROWS] * view.batch.inputs).sum()
        return {ROWS: view.batch.inputs.mean(dim=0)}

    return rule.gradient(inner, params, view)
