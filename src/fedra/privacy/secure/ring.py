"""Numbers as integers modulo 2^32, in which masks cancel exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedra.errors import ConfigError

MODULUS_BITS = 32


@dataclass(frozen=True)
class Ring:
    """Fixed-point numbers whose sum over all clients cannot wrap around.

    Args:
        bound: Largest absolute value of a number; larger ones are clipped.
        bits: Bits of a number's absolute value; its resolution is bound / 2^bits.

    Example:
        >>> ring = Ring.for_sum_of(3, bound=1.0)
        >>> float(ring.decode(sum(ring.encode(np.array([0.25])) for _ in range(3)))[0])
        0.75
    """

    bound: float
    bits: int

    @classmethod
    def for_sum_of(cls, clients: int, bound: float, noise: float = 0.0, bits: int = 0) -> Ring:
        """Return a ring that holds the sum of all clients, the finest unless fewer bits are asked for.

        Args:
            clients: Largest number of clients in a sum.
            bound: Largest absolute value of a number.
            noise: Standard deviation of noise that is added in the ring, over the bound; eight deviations must fit.
            bits: Most bits of a number's absolute value; 0 for as many as fit.

        Returns:
            The ring.

        Raises:
            ConfigError: If not even one bit is left for a number.

        Example:
            >>> Ring.for_sum_of(100, bound=1.0).bits
            23
        """
        if not (math.isfinite(bound) and bound > 0):
            raise ConfigError(f"secure.bound must be positive and finite, got {bound}")
        most = 30 - math.ceil(math.log2(clients)) if not noise else int(math.log2(2**31 / (clients + 8 * noise)))
        if most < 1:
            raise ConfigError(
                f"a sum of {clients} numbers of at most {bound} must fit into {MODULUS_BITS} bits, got too many: "
                "lower the size of the cohort"
            )
        return cls(bound, min(bits or most, most))

    @property
    def step(self) -> float:
        """The distance of two neighboring numbers."""
        return float(self.bound / 2**self.bits)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Round to the nearest numbers of the ring.

        Args:
            values: Finite numbers; those beyond the bound are clipped.

        Returns:
            A uint32 array of the same shape.
        """
        if not np.isfinite(values).all():
            raise ConfigError("numbers of a secure sum must be finite, got NaN or infinity")
        clipped = np.clip(np.asarray(values, dtype=np.float64), -self.bound, self.bound)
        return np.rint(clipped / self.step).astype(np.int64).astype(np.uint32)

    def decode(self, total: np.ndarray) -> np.ndarray:
        """Read a sum.

        Args:
            total: The sum of encoded arrays modulo 2^32.

        Returns:
            The sum as float64 numbers.
        """
        return np.asarray(total, dtype=np.uint32).view(np.int32).astype(np.float64) * self.step
