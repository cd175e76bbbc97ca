"""The privacy loss of a run: epsilon for a number of releases, and the noise for a target epsilon.

Relation: zero-out. Numbers of clients and of their examples are public; neighboring runs differ in the data of one
unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any

from fedra.errors import ConfigError

MOST_RELEASES = 10**7
"""Largest number of releases that `releases_within` searches."""
STEPS = 10_000
"""Calibrated noise is rounded up to a multiple of 1 / STEPS."""


@dataclass(frozen=True)
class Mechanism:
    """A Gaussian mechanism that is applied to a random sample of units, many times.

    Args:
        noise: Standard deviation of the noise over the clip norm (the noise multiplier z).
        rate: Probability with which each unit is sampled, independently of the others; 1 without sampling.
        apart: Fewest releases from one participation of a unit to its next, if units take turns; 1 if a unit may be in
            every release. The noise is independent, or correlated over at most as many releases
            (`fedra.privacy.banded`).

    Example:
        >>> round(Mechanism(noise=8.0, rate=1.0).epsilon(50, delta=1e-5), 4)
        3.7965
    """

    noise: float
    rate: float = 1.0
    apart: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise ConfigError(f"noise must be finite and at least 0, got {self.noise}")
        if not 0 < self.rate <= 1:
            raise ConfigError(f"the sampling rate must be above 0 and at most 1, got {self.rate}")
        if self.apart < 1 or (self.apart > 1 and self.rate != 1):
            raise ConfigError(
                f"participations must be at least 1 release apart, and turns need a sampling rate of 1, got "
                f"{self.apart} and rate {self.rate}"
            )

    def participations(self, releases: int) -> int:
        """Return in how many releases a unit is at most.

        Args:
            releases: How often the mechanism was applied.

        Returns:
            All of them, or its turns.

        Example:
            >>> Mechanism(noise=1.0, apart=10).participations(101)
            11
        """
        return -(-releases // self.apart)

    def epsilon(self, releases: int, delta: float) -> float:
        """Return the epsilon of a number of releases.

        Args:
            releases: How often the mechanism was applied.
            delta: The probability with which the bound may fail.

        Returns:
            Epsilon, infinite without noise. It is exact without sampling, and an upper bound by privacy loss
            distributions (dp-accounting) with it.
        """
        _check_delta(delta)
        if releases == 0:
            return 0.0
        if self.noise == 0:
            return math.inf
        if self.rate == 1:
            return gaussian_epsilon(math.sqrt(self.participations(releases)) / self.noise, delta)
        return _sampled_epsilon(self.rate, self.noise, releases, delta)

    def releases_within(self, epsilon: float, delta: float) -> int:
        """Return how many releases a budget allows.

        Args:
            epsilon: The budget.
            delta: The probability with which the bound may fail.

        Returns:
            The largest number of releases whose epsilon is at most the budget; 0 if not even one is.
        """
        if self.noise == 0 or epsilon <= 0:
            return 0

        def excess(releases: int) -> float:
            """The logarithm of epsilon over the budget; positive beyond the largest number that is searched."""
            found = self.epsilon(releases, delta) if releases <= MOST_RELEASES else math.inf
            return math.log(found / epsilon) if found else -math.inf

        return _first_positive(excess, guess=32, exponent=0.5) - 1


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon of a Gaussian mechanism (Balle and Wang, ICML 2018).

    Args:
        mu: Sensitivity over the standard deviation of the noise.
        delta: The probability with which the bound may fail.

    Returns:
        The smallest epsilon for which the mechanism is (epsilon, delta)-private.

    Example:
        >>> round(gaussian_epsilon(10**0.5 / 4, 1e-5), 4)
        3.3414
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    def excess(epsilon: float) -> float:
        left, right = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return float(math.exp(left) - math.exp(min(right, left)) - delta)

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-12))


def noise_for(
    epsilon: float,
    delta: float,
    rate: float,
    releases: int,
    mechanism: Callable[[float, float], Mechanism] = Mechanism,
) -> float:
    """Return the least noise that keeps a number of releases within a budget.

    Args:
        epsilon: The budget.
        delta: The probability with which the bound may fail.
        rate: Sampling rate of the units; 1 without sampling.
        releases: Number of releases.
        mechanism: The mechanism of a noise and a rate.

    Returns:
        The noise multiplier, rounded up to four digits, so its epsilon never exceeds the budget.

    Example:
        >>> noise_for(epsilon=2.0, delta=1e-5, rate=1.0, releases=10)
        6.305
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon must be positive and finite, got {epsilon}")

    def headroom(steps: int) -> float:
        """The logarithm of budget over epsilon at so many steps of noise."""
        found = mechanism(steps / STEPS, rate).epsilon(releases, delta)
        return math.log(epsilon / found) if found else math.inf

    return _first_positive(headroom, guess=STEPS, exponent=1.0) / STEPS


def total_epsilon(spent: Iterable[tuple[Mechanism, int]], delta: float) -> float:
    """Return the epsilon of several runs on the same units.

    Args:
        spent: The mechanism of each run, and how often it was applied.
        delta: The probability with which the bound may fail.

    Returns:
        The epsilon of all releases together.

    Example:
        >>> mechanism = Mechanism(noise=8.0)
        >>> total_epsilon([(mechanism, 25), (mechanism, 25)], 1e-5) == mechanism.epsilon(50, 1e-5)
        True
    """
    counts: dict[Mechanism, int] = {}
    for mechanism, releases in spent:
        counts[mechanism] = counts.get(mechanism, 0) + mechanism.participations(releases)
    if any(mechanism.noise == 0 for mechanism, releases in counts.items() if releases):
        return math.inf
    if all(mechanism.rate == 1 for mechanism in counts):
        return gaussian_epsilon(math.sqrt(sum(n / m.noise**2 for m, n in counts.items())), delta) if counts else 0.0
    accountant = _accountant()
    for mechanism, releases in counts.items():
        accountant.compose(_event(mechanism.rate, mechanism.noise), releases)
    return float(accountant.get_epsilon(delta))


def accountant_name() -> str:
    """Return the name of the accountant with its version, for records.

    Returns:
        Such as "dp-accounting 0.6.0 PLD".

    Example:
        >>> accountant_name().endswith("PLD")
        True
    """
    check_installed()
    return f"dp-accounting {metadata.version('dp-accounting')} PLD"


def check_installed() -> None:
    """Raise if the accountant is not installed: without it there is no epsilon, and so no private run."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "privacy needs an accountant, but dp-accounting is not installed: pip install 'fedra[privacy]'"
        ) from error


@lru_cache(maxsize=256)
def _sampled_epsilon(rate: float, noise: float, releases: int, delta: float) -> float:
    accountant = _accountant()
    # All releases at once: composing one by one takes as long for each as for all of them.
    accountant.compose(_event(rate, noise), releases)
    return float(accountant.get_epsilon(delta))


def _accountant() -> Any:
    check_installed()
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

    return PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)


def _event(rate: float, noise: float) -> Any:
    from dp_accounting import dp_event

    release = dp_event.GaussianDpEvent(noise)
    return release if rate == 1 else dp_event.PoissonSampledDpEvent(rate, release)


def _first_positive(value: Callable[[int], float], guess: int, exponent: float) -> int:
    """Return the smallest integer at which an increasing function is positive, with few evaluations.

    Epsilon is nearly a power of the noise and of the number of releases, so points are interpolated in logarithms;
    `exponent` is the power until two points are known.
    """
    low, below, high, above = 0, -math.inf, 0, math.inf  # high = 0: not known yet
    raised = False
    while not high or high - low > 1:
        if low and high and math.isfinite(below) and math.isfinite(above):
            share = below / (below - above)
            step = low * (high / low) ** share
            guess = math.floor(step) + (0 if raised else 1)
        elif low or high:
            known, at = (above, high) if high else (below, low)
            guess = int(at * math.exp(-known / exponent)) + 1 if math.isfinite(known) else (low + high) // 2 or 2 * low
        if high:  # never far below what is known: with little noise an evaluation takes minutes
            guess = min(max(guess, low + 1, (high * 2) // 3 if not low else 0), high - 1)
        elif low:
            guess = min(max(guess, low + 1), 64 * low)
        found = value(guess)
        raised = found <= 0
        low, below, high, above = (guess, found, high, above) if raised else (low, below, guess, found)
    return high


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(f"delta must be above 0 and below 1, got {delta}")
