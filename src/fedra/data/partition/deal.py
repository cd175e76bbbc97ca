"""Sampling and rounding functions that several partitions share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedra.data.partition.contract import Indices


def collect(indices: Indices, owners: Indices, clients: int) -> list[Indices]:
    """Group `indices` by client in their order, where `owners[i]` owns `indices[i]`."""
    ends = np.bincount(owners, minlength=clients).cumsum()
    return np.split(indices[np.argsort(owners, kind="stable")], ends[:-1])


def by_class(targets: Indices) -> list[Indices]:
    """Return the indices of each class in data order, one array per label that occurs, sorted by label."""
    labels, ranks = np.unique(targets, return_inverse=True)
    return collect(np.arange(len(targets)), ranks, len(labels))


def hand_out(rng: np.random.Generator, classes: list[Indices], counts: Indices) -> list[Indices]:
    """Assign `counts[c, k]` random examples of class c to client k."""
    clients = np.arange(counts.shape[1])
    order = np.concatenate([rng.permutation(members) for members in classes])
    owners = np.concatenate([np.repeat(clients, row) for row in counts])
    return collect(order, owners, len(clients))


def even_counts(total: int, capacities: Indices) -> Indices:
    """Distribute `total` as evenly as the capacities allow, with the remainder for the largest."""
    counts = np.zeros_like(capacities)
    order = np.argsort(capacities, kind="stable")
    for rank, holder in enumerate(order):
        counts[holder] = min(capacities[holder], total // (len(order) - rank))
        total -= counts[holder]
    return counts


def proportional_counts(shares: NDArray[np.float64], total: int, minimum: int) -> Indices:
    """Return `minimum` for every client plus the rest in proportion to `shares`, up to rounding."""
    running = shares.cumsum()
    # The counts add up to the total because the cumulative sum is rounded, not the shares.
    ends = np.rint(running / running[-1] * (total - minimum * len(shares))).astype(np.int64)
    counts: Indices = np.diff(ends, prepend=0) + minimum
    return counts


def lognormal_counts(rng: np.random.Generator, sigma: float, clients: int, total: int, minimum: int) -> Indices:
    """Sample client sizes ~ exp(sigma * N(0, 1)), scaled to `total`; sigma = 0 gives equal sizes."""
    return proportional_counts(rng.lognormal(0.0, sigma, clients), total, minimum)


def log_gammas(rng: np.random.Generator, alpha: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Sample logarithms of Gamma(alpha); normalized, their exponentials are Dir(alpha).

    Gamma(a) = Gamma(a + 1) * U^(1/a) (Marsaglia and Tsang 2000). Logarithms do not underflow for a very small alpha.
    """
    return np.log(rng.standard_gamma(alpha + 1.0, shape)) - rng.standard_exponential(shape) / alpha


def weights(logs: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return exp(logs) scaled along the last axis: 1 for the largest allowed entry, 0 for entries not allowed."""
    top = np.where(allowed, logs, -np.inf).max(axis=-1, keepdims=True)
    # An entry that is not allowed may exceed the maximum; clamping keeps its exponential finite.
    weight: NDArray[np.float64] = np.exp(np.minimum(logs - top, 0.0)) * allowed
    return weight
