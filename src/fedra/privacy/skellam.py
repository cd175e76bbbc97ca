"""Noise that clients add themselves: Skellam numbers, whose sums over clients are Skellam again.

A Skellam number is the difference of two Poisson numbers. Unlike a rounded Gaussian it is an integer to begin with, so
it is exact in the ring of a secure sum, and the accountant needs no argument about floating point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedra.errors import ConfigError
from fedra.privacy.accounting import Mechanism
from fedra.privacy.secret import Secret

ORDERS = (1.1, 1.25, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 128, 256, 512, 1024)
"""Orders of Renyi divergence among which the best is taken."""
BLOCK = 1 << 17
"""Numbers drawn at once, so temporary arrays stay small."""
FEW = 10.0
"""Mean below which Poisson numbers are found by inversion."""


@dataclass(frozen=True)
class SkellamMechanism(Mechanism):
    """A sum of integer vectors with Skellam noise (Agarwal, Kairouz and Liu, NeurIPS 2021), without sampling.

    Args:
        noise: Standard deviation of the noise on the sum over the clip norm, from the clients that suffice.
        rate: Always 1: the server of a secure round knows its cohort.
        apart: Fewest releases from one participation of a unit to its next, if units take turns.
        scale: The clip norm in steps of the ring, which bounds the L2 norm of a client's integers.
        length: Number of values in a vector, which bounds their L1 norm.

    Example:
        >>> mechanism = SkellamMechanism(noise=8.0, scale=2.0**20, length=10**6)
        >>> round(mechanism.epsilon(50, delta=1e-5), 4)
        4.1057
    """

    scale: float = 2.0**20
    length: int = 10**6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate != 1:
            raise ConfigError(f"noise by clients has no amplification, got a sampling rate of {self.rate}: use 1")

    def divergence(self, order: float) -> float:
        """Return the Renyi divergence of one release.

        Args:
            order: The order, above 1.

        Returns:
            The bound of theorem 3.5 of Agarwal et al.
        """
        squared = self.scale**2
        l1 = min(math.sqrt(self.length) * self.scale, squared)
        mu = (self.noise * self.scale) ** 2
        second = min(((2 * order - 1) * squared + 6 * l1) / (4 * mu**2), 3 * l1 / (2 * mu))
        return order * squared / (2 * mu) + second

    def epsilon(self, releases: int, delta: float) -> float:
        """Return the epsilon of a number of releases, by Renyi divergences.

        Args:
            releases: How often the mechanism was applied.
            delta: The probability with which the bound may fail.

        Returns:
            Epsilon, infinite without noise.
        """
        if not 0 < delta < 1:
            raise ConfigError(f"delta must be above 0 and below 1, got {delta}")
        if releases == 0:
            return 0.0
        if self.noise == 0:
            return math.inf
        turns = self.participations(releases)
        return max(min(_from_renyi(order, turns * self.divergence(order), delta) for order in ORDERS), 0.0)


def _from_renyi(order: float, divergence: float, delta: float) -> float:
    """Return epsilon at one order (Canonne, Kamath and Steinke, NeurIPS 2020, proposition 12)."""
    return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def draw_skellam(count: int, variance: float, secret: Secret, *where: int) -> np.ndarray:
    """Draw Skellam numbers.

    Args:
        count: How many.
        variance: Their variance; each is the difference of two Poisson numbers of half of it.
        secret: Where they come from.
        *where: Such as round and attempt.

    Returns:
        An int64 array.

    Example:
        >>> draw_skellam(3, 100.0, Secret(bytes(32)), 1).dtype
        dtype('int64')
    """
    result = np.empty(count, dtype=np.int64)
    for block, start in enumerate(range(0, count, BLOCK)):
        size = min(BLOCK, count - start)
        up, down = (_draw_poisson(size, variance / 2, secret.derive(name, *where, block)) for name in ("up", "down"))
        result[start : start + size] = up - down
    return result


def _draw_poisson(count: int, mean: float, secret: Secret) -> np.ndarray:
    """Draw Poisson numbers from a secret by transformed rejection (Hoermann, 1993), below FEW by inversion.

    NumPy's own sampler takes a generator that is not made for secrets, and loses digits above a mean of 10^9, where it
    subtracts logarithms of factorials; here the logarithm of the density is computed from the relative distance.
    """
    if mean < FEW:
        return _invert_poisson(secret.uniforms(count, "poisson"), mean)
    b = 0.931 + 2.53 * math.sqrt(mean)
    a = -0.059 + 0.02483 * b
    inverse_alpha, squeeze = 1.1239 + 1.1328 / (b - 3.4), 0.9277 - 3.6224 / (b - 2)
    found = np.empty(count, dtype=np.int64)
    missing, attempt = np.arange(count), 0
    while len(missing):
        u, v = secret.uniforms(2 * len(missing), "poisson", attempt).reshape(2, -1)
        u, attempt = u - 0.5, attempt + 1
        v = np.maximum(v, 2.0**-54)  # a uniform of 0 has no logarithm
        us = 0.5 - np.abs(u)
        drawn = np.floor((2 * a / np.maximum(us, 2.0**-54) + b) * u + mean + 0.43)
        accepted = (us >= 0.07) & (v <= squeeze)
        unsure = ~accepted & (drawn >= 0) & ((us >= 0.013) | (v <= us))
        k, left = drawn[unsure], us[unsure]
        limit = np.log(v[unsure] * inverse_alpha / (a / left**2 + b))
        accepted[unsure] = limit <= _log_density(k, mean)
        found[missing[accepted]] = drawn[accepted].astype(np.int64)
        missing = missing[~accepted]
    return found


def _log_density(k: np.ndarray, mean: float) -> np.ndarray:
    """Return the logarithm of the Poisson density without subtracting large numbers (Loader, 2000)."""
    from scipy.special import gammaln

    x = (k - mean) / mean
    small = k < 1e3
    with np.errstate(divide="ignore", invalid="ignore"):
        stirling = 1 / (12 * k) - 1 / (360 * k**3)
        deviance = mean * ((1 + x) * np.log1p(x) - x)
        large = -deviance - 0.5 * np.log(2 * np.pi * k) - stirling
    return np.where(small, k * math.log(mean) - mean - gammaln(k + 1), large)


def _invert_poisson(uniforms: np.ndarray, mean: float) -> np.ndarray:
    from scipy.stats import poisson

    return np.asarray(poisson.ppf(uniforms, mean)).clip(min=0).astype(np.int64)
