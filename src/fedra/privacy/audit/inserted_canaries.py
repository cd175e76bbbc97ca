"""Canaries in a real run: known vectors that take part like clients, and measure the epsilon of what the run releases.

Andrew et al., ICLR 2024. A canary is a random vector of signs, so it moves every weight by as little as noise does. The
updates of clients add to the scores of all canaries alike, so the measured epsilon is rather too small than too large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedra.core.random import generator
from fedra.core.released_fold import Released
from fedra.errors import ConfigError
from fedra.privacy.audit.canaries import OVERLENGTH, CanaryScores, judge_canaries
from fedra.privacy.audit.findings import Finding
from fedra.privacy.client_level import TINY, ClipAndNoise, PrivateSum
from fedra.privacy.secret import Secret

FEWEST = 20
"""Fewer canaries say nothing."""


@dataclass(frozen=True)
class InsertedCanaries:
    """The canaries of a run; half of them take part, each as often as a client would.

    Args:
        count: Number of canaries.
        length: Length of a client's vector.
        seed: Seed of their directions, and of which of them take part.
        rate: Probability with which a client is in a round.
        apart: Fewest rounds from one turn of a client to its next.

    Example:
        ```python
        canaries = InsertedCanaries(count=40, length=200_000, seed=0, rate=1.0, apart=1)
        ```
    """

    count: int
    length: int
    seed: int
    rate: float
    apart: int

    def __post_init__(self) -> None:
        most = math.isqrt(self.length) // 10
        if not FEWEST <= self.count <= most:
            known = (
                f"between {FEWEST} and {most}"
                if most >= FEWEST
                else f"0 for so few numbers (at least {FEWEST}: 40,000)"
            )
            raise ConfigError(
                f"privacy.canaries must be {known}, a tenth of the square root of the {self.length:,} numbers that a "
                f"client sends, so they stay unnoticed, got {self.count}"
            )

    @cached_property
    def included(self) -> Tensor:
        """Whether each canary takes part (count,), a fair coin for each."""
        found: Tensor = torch.rand(self.count, generator=generator(self.seed, "canaries")) < 0.5
        return found

    def direction(self, index: int) -> Tensor:
        """The direction of a canary, of length one."""
        draw = generator(self.seed, "canary", index)
        signs = torch.randint(0, 2, (self.length,), generator=draw, dtype=torch.int8)
        return (2 * signs - 1) / math.sqrt(self.length)

    def has_turn(self, index: int, round: int) -> bool:
        """Whether it is a canary's turn."""
        return (round + index) % self.apart == 0

    def members(self, secret: Secret, round: int, attempt: int) -> list[int]:
        """The canaries of a round, sampled like clients."""
        drawn = secret.uniforms(self.count, "canaries", round, attempt) < self.rate
        return [i for i in range(self.count) if self.included[i] and drawn[i] and self.has_turn(i, round)]


class CanarySum(PrivateSum):
    """A private sum in which canaries take part, and which scores how strongly each shows in the released sum.

    Args:
        canaries: The canaries.
        scores: The scores (count,) of the rounds before.
        numbers: The round's mechanism.
        secret: Where noise and cohorts come from.
        where: Round and attempt.
    """

    def __init__(
        self, canaries: InsertedCanaries, scores: Tensor, numbers: ClipAndNoise, secret: Secret, *where: int
    ) -> None:
        super().__init__(numbers, canaries.length, secret, *where)
        self._canaries = canaries
        self.scores = scores.clone()

    def finish(self) -> Released:
        canaries, clip = self._canaries, self._numbers.clip
        for index in canaries.members(self._secret, self._where[0], self._where[-1]):
            self.add(OVERLENGTH * clip * canaries.direction(index).unsqueeze(0), [1.0], counted=False)
        released = super().finish()
        deviation = max(self._numbers.noise * clip, TINY)
        for index in range(canaries.count):
            if canaries.has_turn(index, self._where[0]):
                self.scores[index] += float(canaries.direction(index) @ released.total.cpu()) / deviation
        return released


def describe_canaries(scores: Tensor, included: Tensor, accounted: float, delta: float) -> dict[str, Any]:
    """Return what a run's canaries measured, as plain values for the privacy statement.

    Args:
        scores: The scores (count,).
        included: Whether each canary took part (count,).
        accounted: The accountant's epsilon.
        delta: The delta.
    """
    told = {"inside": scores[included].tolist(), "outside": scores[~included].tolist()}
    found = judge_inserted(told, accounted, delta)
    _, measured, bound = found.figures
    return {
        "count": len(scores),
        "epsilon": measured.value,
        "interval": [measured.low, measured.high],
        "at_least": bound.value,
        **({} if found.violation is None else {"violation": found.violation}),
        **told,
    }


def judge_inserted(told: dict[str, Any], accounted: float, delta: float, seed: int = 0) -> Finding:
    """Compare the epsilon that a run's own canaries measured with the accountant's.

    Args:
        told: The canaries of the privacy statement, with their scores `inside` and `outside`.
        accounted: The accountant's epsilon.
        delta: The delta.
        seed: Seed of the bootstrap.
    """
    scores = CanaryScores(np.array(told["inside"], dtype=float), np.array(told["outside"], dtype=float))
    return judge_canaries(scores, accounted, delta, "a canary in the run itself", seed)
