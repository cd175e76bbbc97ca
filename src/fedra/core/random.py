"""Randomness keyed by (seed, purpose, round, client), so that no draw depends on a worker, an order or a resume."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


def key(seed: int, purpose: str, *where: int) -> int:
    """A 63-bit seed for one purpose at one place, e.g. `key(seed, "shuffle", round, client)`."""
    text = "/".join((str(seed), purpose, *map(str, where)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *where: int) -> torch.Generator:
    """A fresh CPU generator for one purpose at one place."""
    return torch.Generator().manual_seed(key(seed, purpose, *where))


def shuffles(seed: int, round: int, clients: Sequence[int], sizes: Sequence[int], epochs: int) -> np.ndarray:
    """(epochs, all examples): the order in which each client goes over its examples, one client after the other.

    An epoch sorts a client's examples by hashes of (seed, round, client, place), so that the orders of a thousand
    clients are a few sums over one array, and each client's is what it would be alone.
    """
    owner = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    ends = np.cumsum(sizes)
    first = np.repeat(ends - np.asarray(sizes), sizes)
    streams = _mixed(np.asarray(clients, dtype=np.uint64) + np.uint64(key(seed, "shuffle", round)))[owner]
    places = (np.arange(len(owner)) - first).astype(np.uint64)
    orders = np.empty((epochs, len(owner)), dtype=np.int64)
    for epoch in range(epochs):
        drawn = _mixed(streams + (np.uint64(epoch) << np.uint64(40)) + places)
        # The owner above 40 bits of the draw: one sort keeps the clients apart.
        orders[epoch] = np.argsort(owner << np.uint64(40) | drawn >> np.uint64(24), kind="stable") - first
    return orders


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): neighbors become unrelated 64-bit numbers."""
    mixed = values * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed ^ mixed >> np.uint64(31)


class _Turn:
    """One thread at a time: torch's own generators are the whole process's."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            # A fork has no other threads, and must not wait for one that had its turn.
            os.register_at_fork(after_in_child=self._anew)

    def _anew(self) -> None:
        self.lock = threading.RLock()


_TURN = _Turn()


@contextmanager
def scoped_seed(seed: int) -> Iterator[None]:
    """Seed torch's own generators inside the block and restore them after it; other threads' blocks wait.

    For code that cannot be handed a generator: weight initialization and dropout layers.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with _TURN.lock, torch.random.fork_rng(devices=devices):
        torch.random.manual_seed(seed)
        yield


@contextmanager
def unmoved(device: torch.device) -> Iterator[None]:
    """Restore the streams that dropout layers on `device` draw from after the block: for passes that only look on."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
