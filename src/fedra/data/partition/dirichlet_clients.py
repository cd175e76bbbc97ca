"""Label skew by a Dirichlet distribution of each client over the classes."""

from __future__ import annotations

import numpy as np

from fedra.data.partition.contract import PARTITIONS, Concentration, Indices, Spread, check_clients
from fedra.data.partition.deal import by_class, hand_out, log_gammas, lognormal_counts, weights


@PARTITIONS.add("dirichlet-clients")
def dirichlet_clients(
    targets: Indices,
    clients: int,
    seed: int,
    groups: Indices | None,
    *,
    alpha: Concentration = 0.1,
    sigma: Spread = 0.0,
) -> list[Indices]:
    """Give each client its own class distribution q ~ Dir(alpha), with equal sizes or lognormal ones (`sigma`).

    The Dirichlet partition of Hsu et al. 2019 (arXiv:1909.06335) and FedDyn: proportions are per client over classes.
    All clients sample at once. A class with too few examples is divided among the clients that sampled it, and clients
    with missing examples sample again from the remaining classes, renormalized. Every example is used.
    """
    check_clients("dirichlet-clients", clients, len(targets), "examples")
    rng = np.random.default_rng(seed)
    classes = by_class(targets)
    left = np.array([len(members) for members in classes])
    missing = lognormal_counts(rng, sigma, clients, len(targets), minimum=1)
    mixes = log_gammas(rng, alpha, (clients, len(classes)))
    counts = np.zeros_like(mixes, dtype=np.int64)
    # Terminates: every pass either fills all clients or exhausts a class.
    while missing.any():
        drawn = _draw(rng, mixes, missing, left)
        counts += drawn
        missing -= drawn.sum(axis=1)
        left -= drawn.sum(axis=0)
    return hand_out(rng, classes, counts.T)


def _draw(rng: np.random.Generator, mixes: np.ndarray, missing: Indices, left: Indices) -> Indices:
    """Sample the counts (clients, classes) for `missing` examples per client from `left` examples per class."""
    shares = weights(mixes, left > 0)
    wanted: Indices = rng.multinomial(missing, shares / shares.sum(axis=1, keepdims=True))
    for label in np.flatnonzero(wanted.sum(axis=0) > left):
        wanted[:, label] = rng.multivariate_hypergeometric(wanted[:, label], left[label])
    return wanted
