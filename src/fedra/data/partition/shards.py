"""Pathological label skew: a few shards of sorted data per client."""

from __future__ import annotations

import numpy as np

from fedra.data.partition.contract import PARTITIONS, Count, Indices, check_clients
from fedra.data.partition.deal import by_class, even_counts
from fedra.data.partition.legacy import class_shards as legacy_class_shards
from fedra.errors import ConfigError


@PARTITIONS.add("shards")
def shards(
    targets: Indices,
    clients: int,
    seed: int,
    groups: Indices | None,
    *,
    shards: Count = 2,
    drop_remainder: bool = False,
) -> list[Indices]:
    """Sort by label, cut into clients * shards contiguous shards, and give each client `shards` at random.

    The split of McMahan et al. 2017 (arXiv:1602.05629), also FedArc's. A shard that straddles a border
    holds two classes. The first shards are one longer when the examples do not divide; `drop_remainder`
    leaves those examples out instead.
    """
    pieces = clients * shards
    check_clients("shards", clients, len(targets) // shards, f"times {shards} examples")
    order = np.argsort(targets, kind="stable")
    if drop_remainder:
        order = order[: len(order) // pieces * pieces]
    cut = np.array_split(order, pieces)
    drawn = np.random.default_rng(seed).permutation(pieces).reshape(clients, shards)
    return [np.concatenate([cut[piece] for piece in row]) for row in drawn]


@PARTITIONS.add("class-shards")
def class_shards(
    targets: Indices,
    clients: int,
    seed: int,
    groups: Indices | None,
    *,
    shards: Count = 2,
    legacy: bool = False,
) -> list[Indices]:
    """Cut every class into about clients * shards / classes shards, and give each client `shards` at random.

    The sharding of FedSoL (arXiv:2308.12532) and FedNTD: a shard never mixes classes, and a client may draw
    one class twice. Shard sizes are equal only where classes are. A class smaller than its number of shards
    yields the surplus to larger classes. `legacy` draws as FedSoL's code does, from the same random stream.
    """
    check_clients("class-shards", clients, len(targets) // shards, f"times {shards} examples")
    classes = by_class(targets)
    if clients * shards < len(classes):
        raise ConfigError(
            f"the partition 'class-shards' has {clients} clients times {shards} shards for "
            f"{len(classes)} classes: set shards to at least {-(-len(classes) // clients)} to use every class"
        )
    if legacy:
        return legacy_class_shards(classes, clients, seed, shards)
    rng = np.random.default_rng(seed)
    counts = even_counts(clients * shards, np.array([len(members) for members in classes]))
    cut = [shard for members, count in zip(classes, counts, strict=True) for shard in np.array_split(members, count)]
    drawn = rng.permutation(len(cut)).reshape(clients, shards)
    return [np.concatenate([cut[shard] for shard in row]) for row in drawn]
