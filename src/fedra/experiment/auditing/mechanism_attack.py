"""Canaries through the mechanism of a private run: its own clip, sampling and noise, without training."""

from __future__ import annotations

import torch
from torch import Tensor

from fedra.console import steps
from fedra.core.random import key
from fedra.experiment.auditing.audit_target import AuditTarget, UnfitAttack
from fedra.experiment.private_run import sampling_rate
from fedra.parts.private import PrivateMean
from fedra.privacy.audit.canaries import CanaryScores, judge_canaries, run_canaries
from fedra.privacy.audit.findings import Finding
from fedra.privacy.client_level import ClipAndNoise, PrivateSum
from fedra.privacy.secret import Secret


def attack_mechanism(target: AuditTarget) -> tuple[Finding, CanaryScores]:
    """Measure epsilon with canary clients, next to the accountant's."""
    part, stated = target.job.algorithm.combine, target.guarantee
    if not isinstance(part, PrivateMean) or not stated:
        raise UnfitAttack("it needs a run with differential privacy")
    releases, delta, rate = int(stated["releases"]), float(stated["delta"]), sampling_rate(target.config)
    scores = run_client_canaries(part, releases, rate, target.settings.seed, target)
    accounted = float(stated.get("epsilon", stated.get("epsilon_if_secret", 0.0)))
    found = judge_canaries(
        scores, accounted, delta, str(stated.get("unit", "all data of one client")), target.settings.seed
    )
    if target.config.privacy.where == "clients":
        found = found.with_details(
            notes=("the clients' shares of noise are replaced by one draw of the same variance",)
        )
    return found, scores


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
