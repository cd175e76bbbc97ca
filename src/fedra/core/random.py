"""Randomness keyed by (seed, purpose, round, client), independent of worker, order and resume."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

LOW_BITS = (1 << 24) - 1
"""The bits of a hash by which examples are not ordered."""


def key(seed: int, purpose: str, *where: int) -> int:
    """A 63-bit seed for one purpose, round and client, such as `key(seed, "shuffle", round, client)`."""
    text = "/".join((str(seed), purpose, *map(str, where)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *where: int) -> torch.Generator:
    """A new CPU generator for one purpose, round and client."""
    return torch.Generator().manual_seed(key(seed, purpose, *where))


def shuffles(seed: int, round: int, clients: Sequence[int], sizes: Sequence[int], epochs: int | range) -> np.ndarray:
    """(epochs, all examples): the order of each client's examples, one client after another.

    `epochs` is the number of epochs, or a range of some of them.

    An epoch sorts a client's examples by hashes of (seed, round, client, index), so the orders of a thousand clients
    take a few array operations, and each is the same whether or not other clients are computed with it.
    """
    streams = _mix(np.asarray(clients, dtype=np.uint64) + np.uint64(key(seed, "shuffle", round)))
    wanted = range(epochs) if isinstance(epochs, int) else epochs
    if len(set(sizes)) == 1 and sizes[0] <= LOW_BITS:
        return np.array([_equal_orders(streams, epoch, sizes[0]) for epoch in wanted]).reshape(len(wanted), -1)
    owner = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    first = np.repeat(np.cumsum(sizes) - np.asarray(sizes), sizes)
    index = (np.arange(len(owner)) - first).astype(np.uint64)
    orders = np.empty((len(wanted), len(owner)), dtype=np.int64)
    for place, epoch in enumerate(wanted):
        hashes = _hash_examples(streams[owner], epoch, index) >> np.uint64(24)
        # The client above 40 bits of the hash: one sort orders all clients separately.
        orders[place] = _stable_order(owner << np.uint64(40) | hashes) - first
    return orders


def _hash_examples(streams: np.ndarray, epoch: int, index: np.ndarray) -> np.ndarray:
    """A hash of each example in an epoch."""
    return _mix(streams + (np.uint64(epoch) << np.uint64(40)) + index)


def _equal_orders(streams: np.ndarray, epoch: int, size: int) -> np.ndarray:
    """The orders of clients with equally many examples, each sorted in a row of its own, which is several times faster.

    The example's number replaces the 24 lower bits of its hash, so no two are equal, and the sorted row tells it.
    """
    index = np.arange(size, dtype=np.uint64)
    hashes = _hash_examples(streams[:, None], epoch, index)
    rows = np.sort((hashes & ~np.uint64(LOW_BITS)) | index, axis=1) & np.uint64(LOW_BITS)
    return rows.astype(np.int64).reshape(-1)


def _stable_order(keys: np.ndarray) -> np.ndarray:
    """The order that a stable sort gives; the other sort is several times faster, and the same if no keys are equal."""
    order = np.argsort(keys)
    ranked = keys[order]
    return np.argsort(keys, kind="stable") if (ranked[1:] == ranked[:-1]).any() else order


def _mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), a 64-bit hash."""
    mixed = values * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed ^ mixed >> np.uint64(31)


class _SeedLock:
    """A lock for torch's global generators, which all threads of a process share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            # A fork has no other threads and must not wait for one that held the lock.
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.lock = threading.RLock()


_SEED = _SeedLock()


@contextmanager
def scoped_seed(seed: int) -> Iterator[None]:
    """Seed torch's global generators inside the block and restore them afterward; other threads wait.

    For code that does not accept a generator: weight initialization and dropout layers.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with _SEED.lock, torch.random.fork_rng(devices=devices):
        torch.random.manual_seed(seed)
        yield


@contextmanager
def preserve_rng(device: torch.device) -> Iterator[None]:
    """Restore the random state of dropout layers on `device` after the block, for passes that must not advance it."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
