"""Canaries: known vectors that are sent through a mechanism, for an epsilon that is measured instead of proven.

Andrew et al., "One-shot empirical privacy estimation for federated learning", ICLR 2024; Steinke et al., "Privacy
auditing with one (1) training run", NeurIPS 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedra.core.evaluate import ignore_progress
from fedra.core.random import generator
from fedra.privacy.accounting import gaussian_epsilon
from fedra.privacy.audit.findings import AuditFigure, Finding
from fedra.privacy.audit.membership import CONFIDENCE, RESAMPLES, VIOLATION

OVERLENGTH = 3.0
"""Length of a canary over the clip norm, so a clip that is missing shows."""
WIDTH = 2
"""Coordinates of a canary."""
GUESSES = 0.1
"""Share of the canaries about which the one-run bound guesses; it says nothing about the others."""

Mechanism = Callable[[int, Tensor], tuple[Tensor, float]]
"""From the number of a release and the vectors (k, d) of the canaries that take part to the released sum (d,) and the
standard deviation of its noise."""


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """How strongly each canary shows in all releases.

    Args:
        inside: Scores of the canaries that were included.
        outside: Scores of those that were not.

    Example:
        >>> scores = CanaryScores(np.array([3.0, 4.0, 5.0]), np.array([0.0, -1.0, 1.0]))
        >>> scores.epsilon(delta=1e-5) > 1
        True
    """

    inside: np.ndarray
    outside: np.ndarray

    @property
    def separation(self) -> float:
        """The distance of the means of both groups, in standard deviations within a group."""
        spread = math.sqrt((self.inside.var(ddof=1) + self.outside.var(ddof=1)) / 2)
        return max(float(self.inside.mean() - self.outside.mean()) / max(spread, 1e-12), 0.0)

    def epsilon(self, delta: float) -> float:
        """The epsilon of a Gaussian mechanism that separates its canaries as far.

        Args:
            delta: The delta.

        Returns:
            An estimate, not a bound. One deviation is fitted to both groups: a difference between two fitted ones would
            decide about tails that no canary has seen.
        """
        return _epsilon_of(self.separation, delta)

    def interval(self, delta: float, seed: int = 0, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """A bootstrap interval of the estimate, over canaries.

        Args:
            delta: The delta.
            seed: Seed of the bootstrap.
            confidence: Confidence of the interval.

        Returns:
            The lower and the upper end.
        """
        draw, groups, tail = np.random.default_rng(seed), (self.inside, self.outside), (1 - confidence) / 2
        drawn = ([scores[draw.integers(0, len(scores), len(scores))] for scores in groups] for _ in range(RESAMPLES))
        found = [CanaryScores(*pair).separation for pair in drawn]
        low, high = (_epsilon_of(float(np.quantile(found, end)), delta) for end in (tail, 1 - tail))
        return low, high

    def one_run_bound(self, delta: float, confidence: float = CONFIDENCE) -> float:
        """A lower bound of epsilon that holds with a confidence, without any assumption on the scores.

        Args:
            delta: The delta.
            confidence: The confidence.

        Returns:
            The largest epsilon that the guesses refute; 0 if they refute none.
        """
        count = len(self.inside) + len(self.outside)
        guesses = max(int(GUESSES * count) // 2, 1)
        scores = np.concatenate([self.inside, self.outside])
        truth = np.concatenate([np.ones(len(self.inside), bool), np.zeros(len(self.outside), bool)])
        order = np.argsort(scores, kind="stable")
        right = int((~truth[order[:guesses]]).sum() + truth[order[-guesses:]].sum())
        return one_run_epsilon(count, 2 * guesses, right, delta, confidence)


def _epsilon_of(separation: float, delta: float) -> float:
    return gaussian_epsilon(separation, delta) if separation > 0 else 0.0


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """The epsilon that a number of right guesses refutes (Steinke et al., theorem 5.2).

    Args:
        canaries: Number of canaries, each included with probability 1/2.
        guesses: Number of canaries that the attack guessed about.
        right: Number of right guesses.
        delta: The delta.
        confidence: Confidence of the bound.

    Returns:
        The lower bound of epsilon.

    Example:
        >>> one_run_epsilon(1000, 100, 50, 1e-5)
        0.0
    """
    from scipy.stats import binom

    def chance(epsilon: float) -> float:
        """How likely so many right guesses are at most, if the mechanism were (epsilon, delta)-private."""
        share = 1 / (1 + math.exp(-epsilon))
        below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, share))
        leak = float((below / np.arange(1, right + 1)).max()) if right else 0.0
        return float(binom.sf(right - 1, guesses, share)) + 2 * canaries * delta * leak

    limit = 1 - confidence
    if chance(0.0) > limit:
        return 0.0
    low, high = 0.0, 1.0
    while chance(high) <= limit and high < 50:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) <= limit else (low, middle)
    return low


def run_canaries(
    mechanism: Mechanism,
    releases: int,
    *,
    count: int = 2000,
    rate: float = 1.0,
    clip: Callable[[int], float] = lambda release: 1.0,
    seed: int = 0,
    done: Callable[[int], None] = ignore_progress,
) -> CanaryScores:
    """Send canaries through a mechanism and score how strongly each shows in what was released.

    Canaries are orthogonal, so none hides another, and three times as long as the clip norm. Half of them take part,
    each in every release with probability `rate`. No model is trained: this is the worst case for the mechanism.

    Args:
        mechanism: The mechanism, for example a clipped sum with noise.
        releases: Number of releases.
        count: Number of canaries.
        rate: Sampling rate of the units.
        clip: The clip norm of each release.
        seed: Seed of the canaries.
        done: Called with the number of finished releases.

    Returns:
        The scores.

    Example:
        >>> noise = torch.Generator().manual_seed(0)
        >>> def unclipped(release, vectors):
        ...     return vectors.sum(dim=0) + 3.0 * torch.randn(vectors.shape[1], generator=noise), 3.0
        >>> run_canaries(unclipped, releases=10, count=100).one_run_bound(1e-5) > 0
        True
    """
    draw = generator(seed, "canaries")
    units = torch.nn.functional.normalize(torch.randn(count, WIDTH, generator=draw), dim=1)
    directions = (torch.eye(count).unsqueeze(2) * units).flatten(1)
    included = torch.rand(count, generator=draw) < 0.5
    scores = torch.zeros(count, dtype=torch.float64)
    for release in range(releases):
        drawn = torch.rand(count, generator=draw) < rate
        norm = clip(release)
        total, noise = mechanism(release, OVERLENGTH * norm * directions[included & drawn])
        scores += (directions @ total / max(noise, 1e-30)).double()
        done(1)
    values, kept = scores.numpy(), included.numpy()
    return CanaryScores(values[kept], values[~kept])


def judge_canaries(scores: CanaryScores, accounted: float, delta: float, unit: str, seed: int = 0) -> Finding:
    """Compare the measured epsilon with the accountant's.

    Args:
        scores: The canaries' scores.
        accounted: The accountant's epsilon.
        delta: The delta.
        unit: What one canary stands for, such as "all data of one client".
        seed: Seed of the bootstrap.

    Returns:
        The finding. It is a violation if the lower end of a 99.9 % interval, or the one-run bound, is above the
        accountant's epsilon.

    Example:
        >>> apart = CanaryScores(np.random.default_rng(0).normal(9, 1, 200), np.random.default_rng(1).normal(0, 1, 200))
        >>> judge_canaries(apart, accounted=1.0, delta=1e-5, unit="a client").violation is not None
        True
    """
    measured, count = scores.epsilon(delta), len(scores.inside) + len(scores.outside)
    low, high = scores.interval(delta, seed)
    bound = scores.one_run_bound(delta)
    surely = max(scores.interval(delta, seed, VIOLATION)[0], scores.one_run_bound(delta, VIOLATION))
    violation = None
    if surely > accounted:
        violation = (
            f"canaries measure an epsilon of at least {surely:.2f} at delta {delta:g}, and the accountant says "
            f"{accounted:.2f}: clip, noise or sampling is broken"
        )
    return Finding(
        "mechanism",
        f"canaries through clip, sampling and noise; unit: {unit}",
        (
            AuditFigure("epsilon by the accountant", accounted, accounted, accounted, None, count),
            AuditFigure("epsilon measured", measured, low, high, 0.0, count),
            AuditFigure("epsilon at least (95 %)", bound, bound, bound, 0.0, count),
        ),
        reading=(
            "The measured epsilon should not be above the accountant's; below it is expected where units are sampled, "
            "because the canaries' scores add up all releases."
        ),
        violation=violation,
    )
