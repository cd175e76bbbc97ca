"""Quantity skew: clients differ only in size."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedra.data.partition.contract import (
    PARTITIONS,
    Concentration,
    Count,
    Indices,
    Spread,
    check_clients,
    check_min_size,
)
from fedra.data.partition.deal import log_gammas, lognormal_counts, proportional_counts, weights


@PARTITIONS.add("quantity")
def quantity(
    targets: Indices,
    clients: int,
    seed: int,
    groups: Indices | None,
    *,
    law: Literal["dirichlet", "lognormal"] = "dirichlet",
    alpha: Concentration = 0.5,
    sigma: Spread = 1.0,
    min_size: Count = 10,
) -> list[Indices]:
    """Give clients very different sizes and random labels.

    Every client gets `min_size` examples. The rest is distributed by Dir(alpha) (NIID-Bench, arXiv:2102.02079) or in
    proportion to exp(sigma * N(0, 1)), depending on `law`.
    """
    check_clients("quantity", clients, len(targets), "examples")
    check_min_size("quantity", clients, min_size, len(targets))
    rng = np.random.default_rng(seed)
    if law == "dirichlet":
        shares = weights(log_gammas(rng, alpha, (clients,)), np.ones(clients, dtype=bool))
        sizes = proportional_counts(shares, len(targets), min_size)
    else:
        sizes = lognormal_counts(rng, sigma, clients, len(targets), min_size)
    return np.split(rng.permutation(len(targets)), sizes.cumsum()[:-1])
