"""The privacy loss of single examples: each client's own, from its sampling rate and its local steps.

Clients hold different examples, so a run spends what its worst client spends. Who takes part is public here, so
sampling clients amplifies nothing.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedra.core.local_training import LocalTraining
from fedra.errors import ConfigError
from fedra.privacy.accounting import Mechanism, noise_for

EVALUATIONS = 8
"""Most evaluations of epsilon for one figure; with more kinds of clients it is a bound that is rounded up."""
KINDS = 8
"""Kinds of clients that are distinguished where each needs an epsilon of its own."""


class Exposure(NamedTuple):
    """How often an example of a client may be used in one round.

    Args:
        rate: Probability with which it is in a batch; 1 without amplification.
        releases: Number of noised sums that it may be in.
    """

    rate: float
    releases: int

    def after(self, rounds: int) -> Exposure:
        """The exposure of several rounds."""
        return Exposure(self.rate, self.releases * rounds)


def exposure_of(local: LocalTraining, fewest: int, most: int, amplified: bool) -> Exposure:
    """Return a client's exposure in a round.

    Args:
        local: How it trains.
        fewest: Least number of examples that it may have.
        most: Largest number of examples that it may have.
        amplified: Whether sampled batches may be counted.

    Returns:
        Its exposure. An epoch of shuffled batches uses every example once.

    Example:
        >>> exposure_of(LocalTraining(epochs=2, batch=50, sampling="poisson"), 600, 600, amplified=True)
        Exposure(rate=0.08333333333333333, releases=24)
    """
    if local.sampling == "shuffle":
        return Exposure(1.0, local.epochs)
    return Exposure(local.sampling_rate(fewest) if amplified else 1.0, local.steps(most))


@dataclass(frozen=True)
class ExampleAccount:
    """What every client's examples have lost, as a function of the rounds in which the client took part.

    Args:
        noise: Noise over the clip norm.
        delta: The probability with which the bound may fail.
        exposures: Each client's exposure in a round.

    Example:
        >>> account = ExampleAccount(8.0, 1e-5, (Exposure(1.0, 1), Exposure(1.0, 2)))
        >>> round(account.largest([50, 0]), 4), account.largest([0, 0])
        (3.7965, 0.0)
    """

    noise: float
    delta: float
    exposures: tuple[Exposure, ...]

    def largest(self, rounds: Sequence[int]) -> float:
        """Return the epsilon of the client that lost most.

        Args:
            rounds: In how many rounds each client took part.

        Returns:
            An epsilon that holds for every client: exact, or rounded up if very many kinds of clients differ.
        """
        pairs = {one.after(count) for one, count in zip(self.exposures, rounds, strict=True) if count}
        return _largest(pairs, self.noise, self.delta)[0]

    def median(self, rounds: Sequence[int]) -> float:
        """Return a bound that holds for half of the clients.

        Args:
            rounds: In how many rounds each client took part.

        Returns:
            The median of the clients' epsilons, each of which may be rounded up.
        """
        pairs = [one.after(count) for one, count in zip(self.exposures, rounds, strict=True)]
        bounds = _bounds(pairs)
        spent = {bound: self._epsilon(bound) for bound in set(bounds.values())}
        return statistics.median_high([spent[bounds[pair]] for pair in pairs])

    def limits(self, epsilon: float, rounds: int) -> list[int]:
        """Return in how many rounds each client may take part.

        Args:
            epsilon: The budget of every client.
            rounds: Number of rounds of the run.

        Returns:
            Limits, at most `rounds` each.
        """
        if self.largest([rounds] * len(self.exposures)) <= epsilon * (1 + 1e-9):
            return [rounds] * len(self.exposures)
        bounds = _bounds(self.exposures)
        found = {}
        for bound in set(bounds.values()):
            allowed = Mechanism(self.noise, bound.rate).releases_within(epsilon, self.delta)
            found[bound] = min(allowed // bound.releases, rounds)
        return [found[bounds[one]] for one in self.exposures]

    def _epsilon(self, pair: Exposure) -> float:
        return Mechanism(self.noise, pair.rate).epsilon(pair.releases, self.delta)


def noise_for_examples(epsilon: float, delta: float, exposures: Sequence[Exposure], rounds: int) -> float:
    """Return the least noise that keeps every client within a budget.

    Args:
        epsilon: The budget.
        delta: The probability with which the bound may fail.
        exposures: Each client's exposure in a round.
        rounds: In how many rounds a client takes part.

    Returns:
        The noise multiplier.

    Example:
        >>> noise_for_examples(2.0, 1e-5, [Exposure(1.0, 1)], 10) == noise_for(2.0, 1e-5, 1.0, 10)
        True
    """
    pairs = {one.after(rounds) for one in exposures}
    worst = max(pairs, key=lambda pair: pair.rate * math.sqrt(pair.releases))
    noise = 0.0
    while True:
        found = noise_for(epsilon, delta, worst.rate, worst.releases)
        if found <= noise:
            raise ConfigError(f"privacy.epsilon = {epsilon:g} must allow some noise, got none that does: raise it")
        noise = found
        spent, worst = _largest(pairs, noise, delta)
        if spent <= epsilon * (1 + 1e-9):
            return noise


def _largest(pairs: set[Exposure], noise: float, delta: float) -> tuple[float, Exposure]:
    """Return the largest epsilon of some exposures, and a pair that has it or bounds it.

    Epsilon grows with the rate and with the releases, so the corner of a group bounds the group: the group with the
    largest bound is split until it is a single pair.
    """
    front = _front(pairs)
    if not front:
        return 0.0, Exposure(1.0, 0)
    spent: dict[Exposure, float] = {}

    def entry(group: Sequence[Exposure]) -> tuple[float, float, int, Sequence[Exposure]]:
        corner = _corner(group)
        if corner not in spent:
            spent[corner] = Mechanism(noise, corner.rate).epsilon(corner.releases, delta)
        return -spent[corner], -corner.rate, len(group), group

    heap = [entry(front)]
    while len(heap[0][3]) > 1 and len(spent) < EVALUATIONS:
        group = heapq.heappop(heap)[3]
        middle = len(group) // 2
        heapq.heappush(heap, entry(group[:middle]))
        heapq.heappush(heap, entry(group[middle:]))
    return -heap[0][0], _corner(heap[0][3])


def _front(pairs: set[Exposure]) -> list[Exposure]:
    """Return the pairs that no other exceeds in both respects, by falling rate."""
    front: list[Exposure] = []
    for pair in sorted(pairs, reverse=True):
        if not front or pair.releases > front[-1].releases:
            front.append(pair)
    return front


def _corner(group: Sequence[Exposure]) -> Exposure:
    return Exposure(max(pair.rate for pair in group), max(pair.releases for pair in group))


def _bounds(pairs: Sequence[Exposure]) -> dict[Exposure, Exposure]:
    """Return for each pair one that bounds it, of which there are few."""
    kinds = sorted(set(pairs))
    size = math.ceil(len(kinds) / KINDS)
    groups = [kinds[start : start + size] for start in range(0, len(kinds), size)]
    return {pair: _corner(group) for group in groups for pair in group}
