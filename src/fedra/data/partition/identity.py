"""Partition by identity: each person belongs to one client, or to several if identities are shared."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedra.data.partition.contract import PARTITIONS, Indices, Spread, check_clients
from fedra.data.partition.deal import by_class, lognormal_counts
from fedra.errors import ConfigError


@PARTITIONS.add("identity")
def identity(
    targets: Indices,
    clients: int,
    seed: int,
    groups: Indices | None,
    *,
    balance: Literal["balanced", "lognormal"] = "balanced",
    sigma: Spread = 1.0,
    shared: Annotated[float, Field(ge=0, le=1)] = 0.0,
    holders: Annotated[int, Field(ge=2)] = 2,
) -> list[Indices]:
    """Assign whole identities (targets) to clients at random, as in federated face recognition.

    The partition of FedGC (AAAI 2022): `balanced` assigns equal numbers of identities, `lognormal` numbers in
    proportion to exp(sigma * N(0, 1)), at least one. Without a number of clients, every client gets one identity. For
    the fraction `shared` of the identities, the images are divided among `holders` random clients each.
    """
    identities = by_class(targets)
    clients = clients or len(identities)
    check_clients("identity", clients, len(identities), "identities")
    rng = np.random.default_rng(seed)
    spread = sigma if balance == "lognormal" else 0.0
    counts = lognormal_counts(rng, spread, clients, len(identities), minimum=1)
    owned = np.split(rng.permutation(len(identities)), counts.cumsum()[:-1])
    pieces: list[list[tuple[int, Indices]]] = [[(int(person), identities[person]) for person in own] for own in owned]
    if shared:
        pieces = _share_identities(rng, pieces, shared, holders)
    return [np.concatenate([rows for _, rows in sorted(own, key=lambda piece: piece[0])]) for own in pieces]


def _share_identities(
    rng: np.random.Generator, pieces: list[list[tuple[int, Indices]]], shared: float, holders: int
) -> list[list[tuple[int, Indices]]]:
    """Divide the images of some identities among several clients."""
    if holders > len(pieces):
        raise ConfigError(
            f"partition.holders must be at most {len(pieces)} (the number of clients), got {holders}: lower it"
        )
    owner = {person: client for client, own in enumerate(pieces) for person, _ in own}
    images = {person: rows for own in pieces for person, rows in own}
    eligible = sorted(person for person, rows in images.items() if len(rows) >= holders)
    count = round(shared * len(images))
    if count > len(eligible):
        raise ConfigError(
            f"partition.shared must select at most {len(eligible)} identities (those with at least {holders} images), "
            f"got {count}: lower shared or holders"
        )
    assigned: list[list[tuple[int, Indices]]] = [[] for _ in pieces]
    chosen = set(rng.permutation(eligible)[:count].tolist())
    for person, rows in sorted(images.items()):
        first = owner[person]
        if person not in chosen:
            assigned[first].append((person, rows))
            continue
        others = rng.permutation([client for client in range(len(pieces)) if client != first])[: holders - 1]
        parts = np.array_split(rng.permutation(rows), holders)
        for client, part in zip((first, *others.tolist()), parts, strict=True):
            assigned[client].append((person, np.sort(part)))
    return assigned
