"""Pathological label skew: a few shards of label-sorted data per client."""

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
    """Sort by label, split into clients * shards contiguous shards, and assign `shards` random ones to each client.

    The partition of McMahan et al. 2017 (arXiv:1602.05629) and FedArc. A shard at the boundary of two classes contains
    both. If the examples are not divisible by the number of shards, the first shards have one more example;
    `drop_remainder` drops these examples instead.
    """
    pieces = clients * shards
    check_clients("shards", clients, len(targets) // shards, f"examples / {shards} shards")
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
    """Split every class into about clients * shards / classes shards, and assign `shards` random ones to each client.

    The sharding of FedSoL (arXiv:2308.12532) and FedNTD: a shard contains one class, and a client may get two shards of
    the same class. Shards have equal sizes only if classes do. If a class has fewer examples than shards, larger
    classes get more shards. `legacy` samples from the same random stream as FedSoL's code.
    """
    check_clients("class-shards", clients, len(targets) // shards, f"examples / {shards} shards")
    classes = by_class(targets)
    if clients * shards < len(classes):
        raise ConfigError(
            f"partition.shards must be at least {-(-len(classes) // clients)} for {clients} clients and {len(classes)} "
            f"classes, got {shards}: increase it"
        )
    if legacy:
        return legacy_class_shards(classes, clients, seed, shards)
    rng = np.random.default_rng(seed)
    counts = even_counts(clients * shards, np.array([len(members) for members in classes]))
    cut = [shard for members, count in zip(classes, counts, strict=True) for shard in np.array_split(members, count)]
    drawn = rng.permutation(len(cut)).reshape(clients, shards)
    return [np.concatenate([cut[shard] for shard in row]) for row in drawn]
