"""Whole identities: no person is on two clients."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedra.data.partition.contract import PARTITIONS, Indices, Spread, check_clients
from fedra.data.partition.deal import by_class, lognormal_counts


@PARTITIONS.add("identity")
def identity(
    targets: Indices,
    clients: int,
    seed: int,
    groups: Indices | None,
    *,
    balance: Literal["balanced", "lognormal"] = "balanced",
    sigma: Spread = 1.0,
) -> list[Indices]:
    """Give whole identities (targets) to clients at random, as federated face recognition does.

    The split of FedGC (AAAI 2022): `balanced` gives equal numbers of identities, `lognormal` numbers in
    proportion to exp(sigma * N(0, 1)), at least one. Without a number of clients, one identity each.
    """
    identities = by_class(targets)
    clients = clients or len(identities)
    check_clients("identity", clients, len(identities), "identities")
    rng = np.random.default_rng(seed)
    spread = sigma if balance == "lognormal" else 0.0
    counts = lognormal_counts(rng, spread, clients, len(identities), minimum=1)
    owned = np.split(rng.permutation(len(identities)), counts.cumsum()[:-1])
    return [np.concatenate([identities[person] for person in np.sort(own)]) for own in owned]
