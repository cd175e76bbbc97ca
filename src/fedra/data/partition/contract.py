"""The contract of a partition, and the checks of every result.

A partition is a function `(targets, clients, seed, groups, *, its own fields) -> one index array per client`. It
terminates, assigns every training example to exactly one client, leaves no client empty, and depends only on its
arguments.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from fedra.errors import ConfigError, DataError, FedraError
from fedra.registry import Registry

Indices = NDArray[np.int64]
Concentration = Annotated[float, Field(ge=1e-6, le=1e6)]
"""The parameter alpha of a symmetric Dirichlet distribution: small values are skewed, large ones even."""
Spread = Annotated[float, Field(ge=0, le=10)]
"""The parameter sigma of a lognormal distribution of client sizes; zero gives equal sizes."""
Count = Annotated[int, Field(ge=1)]

PARTITIONS = Registry(
    "partition",
    {
        "fedra.data.partition.dirichlet": "dirichlet",
        "fedra.data.partition.dirichlet_clients": "dirichlet-clients",
        "fedra.data.partition.identity": "identity",
        "fedra.data.partition.iid": "iid",
        "fedra.data.partition.natural": "natural",
        "fedra.data.partition.one_class": "one-class",
        "fedra.data.partition.quantity": "quantity",
        "fedra.data.partition.shards": "class-shards shards",
    },
)


def split(
    name: str,
    targets: ArrayLike,
    clients: int | None,
    seed: int,
    groups: ArrayLike | None = None,
    **settings: Any,
) -> list[Indices]:
    """Assign the training examples to clients by the partition `name`, and check the result.

    `clients` None (or 0) means as many as the data contain, for natural, one-class and identity. `groups` is the owner
    of each example.
    """
    labels = _integers(targets, "targets")
    owners = None if groups is None else _integers(groups, "groups")
    if owners is not None and len(owners) != len(labels):
        raise DataError(f"the data set must have one group per training example ({len(labels)}), got {len(owners)}")
    if seed < 0:
        raise ConfigError(f"partition.seed must be at least 0, got {seed}")
    partition = PARTITIONS[name]
    checked = PARTITIONS.settings(name, settings)
    parts: list[Indices] = partition(labels, clients or 0, seed, owners, **checked)
    _check_parts(name, parts, len(labels), covering=not checked.get("drop_remainder", False))
    return parts


def check_clients(name: str, clients: int, available: int, unit: str) -> None:
    """Raise for fewer than one client, or for more clients than examples (identities, shards, ...)."""
    if clients < 1:
        raise ConfigError(f"partition.clients must be at least 1 for the partition '{name}', got {clients}")
    if clients > available:
        raise ConfigError(
            f"partition.clients must be at most {available:,} (the number of {unit}) for the partition '{name}', got "
            f"{clients:,}: lower it"
        )


def check_min_size(name: str, clients: int, min_size: int, examples: int) -> None:
    """Raise if there are too few examples for the minimum size of every client."""
    if clients * min_size > examples:
        raise ConfigError(
            f"min_size must be at most {examples // clients} for the partition '{name}' ({examples} examples for "
            f"{clients} clients), got {min_size}: lower it, or use fewer clients"
        )


def _integers(values: ArrayLike, what: str) -> Indices:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) == 0 or array.min() < 0:
        raise DataError(
            f"the {what} to partition must be a non-empty vector of non-negative integers, got {array.dtype} of shape "
            f"{array.shape}"
        )
    return array.astype(np.int64)


def _check_parts(name: str, parts: list[Indices], examples: int, covering: bool) -> None:
    empty = [client for client, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise ConfigError(
            f"the partition '{name}' must assign examples to every client, got none for client {empty[0]} (and "
            f"{len(empty) - 1} more): use fewer clients or a less skewed setting"
        )
    owners = np.bincount(np.concatenate(parts), minlength=examples)
    if len(owners) > examples:
        raise FedraError(f"the partition '{name}' must use indices below {examples}, got {len(owners) - 1}")
    if owners.max() > 1:
        raise FedraError(
            f"the partition '{name}' must assign every example once, got example {int(owners.argmax())} more than once"
        )
    if covering and owners.min() == 0:
        raise FedraError(
            f"the partition '{name}' must assign every example, got no client for example {int(owners.argmin())}"
        )
