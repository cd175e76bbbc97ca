"""Randomness that no one can recompute: drawn from 32 secret bytes, never from the run's seed.

Same secret, purpose and place: same numbers, so a round that is repeated after a kill releases the same noise.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedra.errors import RunError

SIZE = 32
"""Bytes of a secret."""
BLOCK = 1 << 18
"""Normals computed at once, so temporary arrays stay small."""
_TO_UNIT = 2.0**-53


@dataclass(frozen=True)
class Secret:
    """32 secret bytes, and keyed random numbers from them. The bytes appear in no text form of the object.

    Args:
        data: The bytes.

    Example:
        >>> secret = Secret(bytes(32))
        >>> torch.equal(secret.normals(3, "noise", 1), secret.normals(3, "noise", 1))
        True
        >>> secret
        Secret()
    """

    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.data) != SIZE:
            raise RunError(f"a secret must have {SIZE} bytes, got {len(self.data)}: restore it from a backup")

    @classmethod
    def create(cls) -> Secret:
        """Return a new secret from the operating system.

        Returns:
            A secret that no seed determines.

        Example:
            >>> Secret.create() == Secret.create()
            False
        """
        return cls(secrets.token_bytes(SIZE))

    @classmethod
    def from_seed(cls, seed: int) -> Secret:
        """Return a secret that anybody who knows the seed can recompute, for research.

        Args:
            seed: The run's seed.

        Returns:
            The secret of that seed.

        Example:
            >>> Secret.from_seed(1) == Secret.from_seed(1)
            True
        """
        return cls(hashlib.blake2b(f"{seed}/privacy".encode(), digest_size=SIZE).digest())

    def derive(self, purpose: str, *where: int) -> Secret:
        """Return a secret for one purpose and place, from which this one cannot be computed.

        Args:
            purpose: What it is for.
            *where: Such as round and client.

        Returns:
            The derived secret, safe to hand to a worker process.

        Example:
            >>> Secret(bytes(32)).derive("client", 1) == Secret(bytes(32)).derive("client", 2)
            False
        """
        return Secret(self._stream(SIZE, "derive/" + purpose, *where))

    def uniforms(self, count: int, purpose: str, *where: int) -> np.ndarray:
        """Return uniform numbers from [0, 1) with 53 random bits each.

        Args:
            count: How many.
            purpose: What they are for.
            *where: Such as round and attempt.

        Returns:
            A float64 array.

        Example:
            >>> Secret(bytes(32)).uniforms(2, "cohort", 1).shape
            (2,)
        """
        words = np.frombuffer(self._stream(8 * count, purpose, *where), dtype="<u8")
        return (words >> np.uint64(11)) * _TO_UNIT

    def normals(self, count: int, purpose: str, *where: int) -> Tensor:
        """Return standard normal numbers, computed in float64 by the Box-Muller transform.

        Args:
            count: How many.
            purpose: What they are for.
            *where: Such as the round.

        Returns:
            A float32 tensor on the CPU.

        Example:
            >>> Secret(bytes(32)).normals(5, "noise", 1).shape
            torch.Size([5])
        """
        result = np.empty(count, dtype=np.float32)
        for block, start in enumerate(range(0, count, BLOCK)):
            size = min(BLOCK, count - start)
            half = (size + 1) // 2
            drawn = self.uniforms(2 * half, purpose, *where, block)
            radius = np.sqrt(-2 * np.log1p(-drawn[:half]))
            angle = 2 * np.pi * drawn[half:]
            pair = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
            result[start : start + size] = pair[:size]
        return torch.from_numpy(result)

    def generator(self, purpose: str, *where: int) -> np.random.Generator:
        """Return a generator for discrete laws such as Poisson, seeded with 256 secret bits.

        Args:
            purpose: What it is for.
            *where: Such as round and client.

        Returns:
            A NumPy generator of its own state.

        Example:
            >>> int(Secret(bytes(32)).generator("skellam", 1).poisson(0.0))
            0
        """
        words = np.frombuffer(self._stream(SIZE, purpose, *where), dtype="<u4")
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words.tolist())))

    def _stream(self, size: int, purpose: str, *where: int) -> bytes:
        text = "/".join((purpose, *map(str, where))).encode()
        return hashlib.shake_256(len(text).to_bytes(8, "big") + text + self.data).digest(size)
