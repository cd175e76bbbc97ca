"""Randomness keyed by (seed, purpose, round, client), so that no draw depends on a worker, an order or a resume."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def key(seed: int, purpose: str, *where: int) -> int:
    """A 63-bit seed for one purpose at one place, e.g. `key(seed, "shuffle", round, client)`."""
    text = "/".join((str(seed), purpose, *map(str, where)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *where: int) -> torch.Generator:
    """A fresh CPU generator for one purpose at one place."""
    return torch.Generator().manual_seed(key(seed, purpose, *where))


@contextmanager
def scoped_seed(seed: int) -> Iterator[None]:
    """Seed torch's own generators inside the block and restore them after it.

    For code that cannot be handed a generator: weight initialisation and dropout layers.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.random.manual_seed(seed)
        yield
