"""What a partition promises, and the proof that it kept the promise.

A partition is a function `(targets, clients, seed, groups, *, its own fields) -> one index array per client`.
It ends, it gives every training example to exactly one client, it leaves no client empty, and it depends on
nothing but its arguments.
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
"""The parameter alpha of a symmetric Dirichlet law: small is skewed, large is even."""
Spread = Annotated[float, Field(ge=0, le=10)]
"""The parameter sigma of a lognormal law of sizes: zero is even."""
Count = Annotated[int, Field(ge=1)]

PARTITIONS = Registry("partition")


def split(
    name: str,
    targets: ArrayLike,
    clients: int | None,
    seed: int,
    groups: ArrayLike | None = None,
    **settings: Any,
) -> list[Indices]:
    """Give the training examples to clients by the partition `name`, and prove the result.

    `clients` None (or 0) means as many as the data have, for the partitions that can tell (natural,
    one-class, identity). `groups` is the natural owner of each example.
    """
    labels = _integers(targets, "targets")
    owners = None if groups is None else _integers(groups, "groups")
    if owners is not None and len(owners) != len(labels):
        raise DataError(
            f"the data set has {len(labels)} targets but {len(owners)} groups: give every training example one group"
        )
    if seed < 0:
        raise ConfigError(f"the partition seed is {seed}: choose zero or a positive integer")
    partition = PARTITIONS[name]
    checked = PARTITIONS.settings(name, settings)
    parts: list[Indices] = partition(labels, clients or 0, seed, owners, **checked)
    _prove(name, parts, len(labels), covering=not checked.get("drop_remainder", False))
    return parts


def check_clients(name: str, clients: int, available: int, unit: str) -> None:
    """Refuse fewer than one client, or more clients than there are examples (identities, shards, ...)."""
    if clients < 1:
        raise ConfigError(f"the partition '{name}' got clients={clients}: choose one client or more")
    if clients > available:
        raise ConfigError(
            f"the partition '{name}' cannot fill {clients} clients from {available} {unit}: "
            f"set clients to at most {available}"
        )


def check_min_size(name: str, clients: int, min_size: int, examples: int) -> None:
    """Refuse a least size that the data cannot give to every client."""
    if clients * min_size > examples:
        raise ConfigError(
            f"the partition '{name}' cannot give {clients} clients min_size={min_size} examples each out of "
            f"{examples}: set min_size to at most {examples // clients} or take fewer clients"
        )


def _integers(values: ArrayLike, what: str) -> Indices:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) == 0 or array.min() < 0:
        raise DataError(
            f"the {what} to partition are {array.dtype} of shape {array.shape}: "
            "give a non-empty vector of integers, zero or above"
        )
    return array.astype(np.int64)


def _prove(name: str, parts: list[Indices], examples: int, covering: bool) -> None:
    empty = [client for client, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise ConfigError(
            f"the partition '{name}' left client {empty[0]} (and {len(empty) - 1} more) without examples: "
            "take fewer clients or a less skewed setting"
        )
    owners = np.bincount(np.concatenate(parts), minlength=examples)
    if len(owners) > examples:
        raise FedraError(f"the partition '{name}' gave away example {len(owners) - 1} of only {examples}")
    if owners.max() > 1:
        raise FedraError(f"the partition '{name}' gave example {int(owners.argmax())} away more than once")
    if covering and owners.min() == 0:
        raise FedraError(f"the partition '{name}' gave example {int(owners.argmin())} to nobody")
