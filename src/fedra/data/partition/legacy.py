"""The two partitions of FedSoL's published runs, sampled from NumPy's legacy stream in the order of their code.

Only the stream differs: the rules are those of `class-shards` and `dirichlet`. The published runs used the seed
19940817. A private RandomState produces the same numbers as the global one.
"""

from __future__ import annotations

import numpy as np

from fedra.data.partition.contract import Indices
from fedra.errors import ConfigError

PUBLISHED_SEED = 19940817


def stream(seed: int) -> np.random.RandomState:
    """Return NumPy's legacy generator, which only takes 32-bit seeds."""
    if seed >= 2**32:
        raise ConfigError(f"partition.seed must be below 2^32 for legacy partitions, got {seed}: use {PUBLISHED_SEED}")
    return np.random.RandomState(seed)


def label_table(rng: np.random.RandomState, classes: int, clients: int, shards: int) -> Indices:
    """Return the class of each client's shards, (clients, shards).

    If the number of shards is not divisible by the number of clients, labels 1, 2, ... of the shuffled list are
    repeated until it is; their classes may be exhausted.
    """
    labels = np.repeat(np.arange(classes), shards * clients // classes)
    rng.shuffle(labels)
    missing = -len(labels) % clients
    return np.append(labels, labels[1 : 1 + missing]).reshape(clients, -1)


def class_shards(classes: list[Indices], clients: int, seed: int, shards: int) -> list[Indices]:
    """FedSoL's sharding, except that a client without shards is an error instead of a copy of another client."""
    rng = stream(seed)
    remaining = [_equal_shards(members, shards * clients // len(classes)) for members in classes]
    parts = []
    for client, row in enumerate(label_table(rng, len(classes), clients, shards)):
        drawn = [
            remaining[label].pop(rng.choice(len(remaining[label]), replace=False)) for label in row if remaining[label]
        ]
        if not drawn:
            raise ConfigError(
                f"every client must have a shard, but legacy sharding with seed {seed} leaves client {client} without "
                "a shard: choose another seed or legacy = false"
            )
        parts.append(np.concatenate(drawn))
    return parts


def _equal_shards(members: Indices, count: int) -> list[Indices]:
    """Split into `count` contiguous equal shards; each remaining example joins one of the first shards."""
    body, rest = np.split(members, [len(members) // count * count])
    return [np.append(shard, rest[index : index + 1]) for index, shard in enumerate(np.split(body, count))]


def dirichlet(
    classes: list[Indices], clients: int, seed: int, alpha: float, min_size: int, cap: bool, tries: int
) -> tuple[list[Indices], int] | None:
    """Return FedSoL's Dirichlet split and the number of tries, or None after `tries` failures.

    Every try shuffles the classes in place, so the accepted split depends on all previous tries.
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
            f"partition.alpha must be large enough not to underflow with legacy = true, got {alpha}: increase it, or "
            "set legacy = false"
        )
    ends = (np.cumsum(shares / whole) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(ends, prepend=0)


def _parts(pools: list[Indices], counts: Indices) -> list[Indices]:
    pieces = [np.split(pool, row.cumsum()[:-1]) for pool, row in zip(pools, counts, strict=True)]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]
