"""The two partitions of FedSoL's published runs, from numpy's legacy stream in the order their code drew.

Only the stream is old: the rules are those of `class-shards` and `dirichlet`. The published runs used seed
19940817. A private RandomState gives the numbers that the global one gave them.
"""

from __future__ import annotations

import numpy as np

from fedra.data.partition.contract import Indices
from fedra.errors import ConfigError

PUBLISHED_SEED = 19940817


def stream(seed: int) -> np.random.RandomState:
    """Numpy's legacy generator, which takes 32-bit seeds only."""
    if seed >= 2**32:
        raise ConfigError(f"legacy partitions take a seed below 2^32, not {seed}: choose {PUBLISHED_SEED}")
    return np.random.RandomState(seed)


def label_table(rng: np.random.RandomState, classes: int, clients: int, shards: int) -> Indices:
    """Which class each client's shards come from, (clients, shards).

    When the shards do not divide by the clients, labels number 1, 2, ... of the shuffled list are asked
    for again until they do; some of those draws find their class exhausted.
    """
    labels = np.repeat(np.arange(classes), shards * clients // classes)
    rng.shuffle(labels)
    missing = -len(labels) % clients
    return np.append(labels, labels[1 : 1 + missing]).reshape(clients, -1)


def class_shards(classes: list[Indices], clients: int, seed: int, shards: int) -> list[Indices]:
    """FedSoL's sharding; where its code copies another client's data to a client without any, refuse."""
    rng = stream(seed)
    piles = [_equal_shards(members, shards * clients // len(classes)) for members in classes]
    parts = []
    for client, row in enumerate(label_table(rng, len(classes), clients, shards)):
        drawn = [piles[label].pop(rng.choice(len(piles[label]), replace=False)) for label in row if piles[label]]
        if not drawn:
            raise ConfigError(
                f"the legacy sharding leaves client {client} without a shard for seed {seed}: "
                "choose another seed or legacy = false"
            )
        parts.append(np.concatenate(drawn))
    return parts


def _equal_shards(members: Indices, count: int) -> list[Indices]:
    """`count` contiguous equal shards; each left-over example joins one of the first shards."""
    body, rest = np.split(members, [len(members) // count * count])
    return [np.append(shard, rest[place : place + 1]) for place, shard in enumerate(np.split(body, count))]


def dirichlet(
    classes: list[Indices], clients: int, seed: int, alpha: float, min_size: int, cap: bool, tries: int
) -> tuple[list[Indices], int] | None:
    """FedSoL's Dirichlet split and the number of tries it took, or None when `tries` were not enough.

    Every try shuffles the classes in place, so the accepted one depends on all before it.
    """
    rng = stream(seed)
    pools = [members.copy() for members in classes]
    examples = sum(map(len, pools))
    limit = examples // clients if cap else examples
    scratch = np.arange(examples)
    for number in range(1, tries + 1):
        counts = np.zeros((len(pools), clients), dtype=np.int64)
        for label, pool in enumerate(pools):
            rng.shuffle(pool)
            counts[label] = _class_counts(rng, len(pool), alpha, counts.sum(axis=0) < limit)
        sizes = counts.sum(axis=0)
        if sizes.min() >= min_size:
            parts = _parts(pools, counts)
            for part in parts:
                rng.shuffle(part)
            return parts, number
        for size in sizes:
            rng.shuffle(scratch[:size])
    return None


def _class_counts(rng: np.random.RandomState, total: int, alpha: float, allowed: np.ndarray) -> Indices:
    shares = rng.dirichlet(np.full(len(allowed), alpha)) * allowed
    whole = shares.sum()
    if not whole > 0:
        raise ConfigError(
            f"the legacy Dirichlet draw underflows at alpha={alpha}: choose a larger alpha or legacy = false"
        )
    ends = (np.cumsum(shares / whole) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(ends, prepend=0)


def _parts(pools: list[Indices], counts: Indices) -> list[Indices]:
    pieces = [np.split(pool, row.cumsum()[:-1]) for pool, row in zip(pools, counts, strict=True)]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]
