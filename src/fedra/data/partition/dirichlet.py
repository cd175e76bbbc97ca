"""Label skew by a Dirichlet distribution of each class over the clients."""

from __future__ import annotations

import numpy as np

from fedra.data.partition import legacy as published
from fedra.data.partition.contract import (
    PARTITIONS,
    Concentration,
    Count,
    Indices,
    check_clients,
    check_min_size,
)
from fedra.data.partition.deal import by_class, hand_out, log_gammas, weights
from fedra.errors import ConfigError

DRAWS_AT_ONCE = 2**18
"""Number of client shares per simulated batch: large enough for NumPy, small enough for the CPU cache."""


@PARTITIONS.add("dirichlet")
def dirichlet(
    targets: Indices,
    clients: int,
    seed: int,
    groups: Indices | None,
    *,
    alpha: Concentration = 0.1,
    min_size: Count = 10,
    cap: bool = True,
    tries: Count = 200_000,
    legacy: bool = False,
) -> list[Indices]:
    """Distribute each class over the clients by p ~ Dir(alpha), resampled until every client has `min_size` examples.

    The Dirichlet partition of FedSoL, FedNTD, MOON and NIID-Bench (arXiv:2102.02079): proportions are per class over
    clients. With `cap`, a client that already has floor(examples / clients) examples gets no further class. Thousands
    of `tries` are normal for alpha = 0.05, so only sizes are simulated and examples are assigned once. `legacy`
    samples from the same random stream as FedSoL's code, which is slow with many tries.
    """
    check_clients("dirichlet", clients, len(targets), "examples")
    check_min_size("dirichlet", clients, min_size, len(targets))
    classes = by_class(targets)
    if legacy:
        found = published.dirichlet(classes, clients, seed, alpha, min_size, cap, tries)
        if found is None:
            raise _too_skewed(alpha, min_size, tries)
        return found[0]
    rng = np.random.default_rng(seed)
    totals = np.array([len(members) for members in classes])
    limit = len(targets) // clients if cap else len(targets)
    counts = _accepted_counts(rng, totals, clients, alpha, limit, min_size, tries)
    if counts is None:
        raise _too_skewed(alpha, min_size, tries)
    return hand_out(rng, classes, counts)


def _accepted_counts(
    rng: np.random.Generator,
    totals: Indices,
    clients: int,
    alpha: float,
    limit: int,
    min_size: int,
    tries: int,
) -> Indices | None:
    """Return the first of `tries` samples (classes, clients) in which every client reaches `min_size`, or None."""
    batch = max(1, DRAWS_AT_ONCE // (clients * len(totals)))
    for start in range(0, tries, batch):
        counts = _simulate(rng, totals, clients, alpha, limit, min(batch, tries - start))
        reached = counts.sum(axis=1).min(axis=1) >= min_size
        if reached.any():
            accepted: Indices = counts[reached.argmax()]
            return accepted
    return None


def _simulate(rng: np.random.Generator, totals: Indices, clients: int, alpha: float, limit: int, batch: int) -> Indices:
    """Sample `batch` independent counts of the examples of each class for each client."""
    counts = np.zeros((batch, len(totals), clients), dtype=np.int64)
    held = np.zeros((batch, clients), dtype=np.int64)
    ends = np.zeros((batch, clients + 1), dtype=np.int64)
    for label, total in enumerate(totals):
        below = held < limit
        # If every client is full before a last small class, all clients share it.
        below |= ~below.any(axis=1, keepdims=True)
        shares = weights(log_gammas(rng, alpha, held.shape), below).cumsum(axis=1)
        ends[:, 1:] = shares / shares[:, -1:] * total
        counts[:, label] = np.diff(ends, axis=1)
        held += counts[:, label]
    return counts


def _too_skewed(alpha: float, min_size: int, tries: int) -> ConfigError:
    return ConfigError(
        f"the partition 'dirichlet' must give every client min_size={min_size} examples, but found no split in {tries} "
        f"tries with alpha={alpha}: increase alpha or tries, lower min_size, or use fewer clients"
    )
