"""Counting out: the arithmetic that several partitions share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedra.data.partition.contract import Indices


def collect(indices: Indices, owners: Indices, clients: int) -> list[Indices]:
    """The `indices` of each client, in their order, when `owners[i]` owns `indices[i]`."""
    ends = np.bincount(owners, minlength=clients).cumsum()
    return np.split(indices[np.argsort(owners, kind="stable")], ends[:-1])


def by_class(targets: Indices) -> list[Indices]:
    """The indices of each class in data order, one array per label that occurs, by rising label."""
    labels, ranks = np.unique(targets, return_inverse=True)
    return collect(np.arange(len(targets)), ranks, len(labels))


def hand_out(rng: np.random.Generator, classes: list[Indices], counts: Indices) -> list[Indices]:
    """Give `counts[c, k]` random examples of class c to client k."""
    clients = np.arange(counts.shape[1])
    order = np.concatenate([rng.permutation(members) for members in classes])
    owners = np.concatenate([np.repeat(clients, row) for row in counts])
    return collect(order, owners, len(clients))


def even_counts(total: int, capacities: Indices) -> Indices:
    """Share `total` as evenly as the capacities allow; what does not divide goes to the largest."""
    counts = np.zeros_like(capacities)
    order = np.argsort(capacities, kind="stable")
    for place, holder in enumerate(order):
        counts[holder] = min(capacities[holder], total // (len(order) - place))
        total -= counts[holder]
    return counts


def proportional_counts(shares: NDArray[np.float64], total: int, minimum: int) -> Indices:
    """`minimum` for everybody and the rest in proportion to `shares`, within one example."""
    running = shares.cumsum()
    # Rounding the running sum, not the shares, makes the counts add up to the total.
    ends = np.rint(running / running[-1] * (total - minimum * len(shares))).astype(np.int64)
    counts: Indices = np.diff(ends, prepend=0) + minimum
    return counts


def lognormal_counts(rng: np.random.Generator, sigma: float, clients: int, total: int, minimum: int) -> Indices:
    """Client sizes ~ exp(sigma * N(0, 1)), scaled to `total`; sigma = 0 is equal sizes."""
    return proportional_counts(rng.lognormal(0.0, sigma, clients), total, minimum)


def log_gammas(rng: np.random.Generator, alpha: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Logarithms of Gamma(alpha) draws; normalized, they are Dir(alpha).

    Gamma(a) = Gamma(a + 1) * U^(1/a) (Marsaglia and Tsang 2000); logarithms do not underflow at a tiny alpha.
    """
    return np.log(rng.standard_gamma(alpha + 1.0, shape)) - rng.standard_exponential(shape) / alpha


def weights(logs: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """exp(logs) up to scale along the last axis: 1 for the largest that is allowed, 0 for what is barred."""
    top = np.where(allowed, logs, -np.inf).max(axis=-1, keepdims=True)
    # A barred entry may be above the top: held down to it, its exponential is finite.
    weight: NDArray[np.float64] = np.exp(np.minimum(logs - top, 0.0)) * allowed
    return weight
