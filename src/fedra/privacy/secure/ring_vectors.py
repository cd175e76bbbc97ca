"""A client's vector as integers of a ring: clipped, weighted, rounded, with the client's share of the noise.

Client and server build this from the same plan, and compare its words before anything is added up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedra.errors import ConfigError
from fedra.privacy.secret import Secret
from fedra.privacy.secure.ring import Ring
from fedra.privacy.secure.secure_messages import SecureRoundError
from fedra.privacy.skellam import SkellamMechanism, draw_skellam


class RingSum(NamedTuple):
    """What a secure sum shows.

    Args:
        total: The sum of the clients' weighted vectors.
        weight: The sum of their weights; nan under differential privacy, where it is a public constant.
        unclipped: Clients that were not clipped minus half of all; nan unless the clip norm adapts.
    """

    total: Tensor
    weight: float
    unclipped: float


@dataclass(frozen=True, kw_only=True)
class RingVectors:
    """How vectors become integers modulo 2^32, and what their sum means.

    Args:
        clients: Largest number of clients in the sum.
        length: Number of values in a vector.
        bound: Largest absolute value of a number; the clip norm under differential privacy.
        clip: Norm to which a whole vector is clipped; None without differential privacy.
        adapts: Whether clients also report if they were clipped.
        noise: Noise that clients add together, over the clip norm; 0 if the server adds it, or there is none.
        fewest: Clients whose shares of the noise suffice; with fewer answers a round is repeated.
        bits: Most bits of a number's absolute value; 0 for as many as fit.

    Example:
        >>> vectors = RingVectors(clients=3, length=2, bound=1.0)
        >>> one = vectors.encode(torch.tensor([0.5, -0.25]), weight=1.0)
        >>> vectors.decode(one + one, answers=2).total
        tensor([ 1.0000, -0.5000])
    """

    clients: int
    length: int
    bound: float
    clip: float | None = None
    adapts: bool = False
    noise: float = 0.0
    fewest: int = 1
    bits: int = 0

    def __post_init__(self) -> None:
        if self.clip is not None and self.reach <= 0:
            raise ConfigError(
                f"{self.clients} clients of at most {self.clip:g} must fit into 32 bits, got steps of "
                f"{self.ring.step:.1e} for {self.length:,} numbers: take fewer clients per round or less noise"
            )

    @cached_property
    def ring(self) -> Ring:
        """The ring of the values, with room for the noise of all clients."""
        noise = self.noise * math.sqrt(self.clients / self.fewest)
        return Ring.for_sum_of(self.clients, self.bound, noise, self.bits)

    @cached_property
    def counts(self) -> Ring:
        """The ring of weights and of clipping bits."""
        return Ring.for_sum_of(self.clients, 1.0)

    @property
    def header(self) -> int:
        """Numbers before the values: the weight, or under differential privacy the bit of an adaptive clip."""
        return int(self.clip is None or self.adapts)

    @property
    def size(self) -> int:
        """Length of an encoded vector."""
        return self.header + self.length

    @property
    def reach(self) -> float:
        """Norm to which values are clipped, so the norm of the rounded integers is at most clip / step."""
        assert self.clip is not None
        return self.clip - math.sqrt(self.length) * self.ring.step / 2

    @property
    def words(self) -> str:
        """Clip, noise and ring in words that client and server compare."""
        how = f"sum of {self.clients} clients in steps of {self.ring.step!r} up to {self.bound!r}"
        if self.clip is not None:
            how += f", clipped to {self.clip!r}" + (" with its count" if self.adapts else "")
        if self.noise:
            how += f", with Skellam noise {self.noise!r} from any {self.fewest}"
        return how

    @property
    def mechanism(self) -> SkellamMechanism:
        """What the accountant counts if clients add the noise."""
        return SkellamMechanism(noise=self.noise, scale=2.0**self.ring.bits, length=self.length)

    def encode(self, vector: Tensor, weight: float, secret: Secret | None = None, *where: int) -> np.ndarray:
        """Return a client's numbers in the ring.

        Args:
            vector: Its values; under differential privacy, one that is not finite counts as zero.
            weight: Its weight, at most 1.
            secret: Where its share of the noise comes from, if clients add noise.
            *where: Client, round and attempt, which key the noise.

        Returns:
            A uint32 array of `size` numbers.
        """
        values = vector.double().cpu().numpy()
        header = np.array([weight])
        if self.clip is not None:
            norm = float(np.linalg.norm(values))
            finite = math.isfinite(norm)
            values = values * min(1.0, self.reach / max(norm, 1e-300)) if finite else np.zeros_like(values)
            header = np.array([0.5 if finite and norm <= self.clip else -0.5])
        numbers = self.ring.encode(weight * values)
        if self.noise:
            if secret is None:
                raise SecureRoundError("clients that add noise need a secret to draw it from, got none")
            variance = (self.noise * 2.0**self.ring.bits) ** 2 / self.fewest
            numbers += draw_skellam(self.length, variance, secret, *where).astype(np.uint32)
        return np.concatenate([self.counts.encode(header[: self.header]), numbers])

    def decode(self, total: np.ndarray, answers: int) -> RingSum:
        """Read the sum of encoded vectors.

        Args:
            total: The sum modulo 2^32.
            answers: Number of clients in it.

        Returns:
            The sums of vectors, weights and bits.

        Raises:
            SecureRoundError: If too few answered for the noise, or the sum is larger than its clients can make it.
        """
        if answers < self.fewest:
            raise SecureRoundError(
                f"at least {self.fewest} clients must add their noise, got {answers}: the round is repeated"
            )
        counted = float(self.counts.decode(total[: self.header]).sum())
        values = self.ring.decode(total[self.header :])
        slack = answers * self.ring.step  # numbers are rounded
        if not self.noise and float(np.abs(values).max(initial=0.0)) > answers * self.bound + slack:
            raise SecureRoundError(
                f"the sum of {answers} clients must not exceed {answers} times {self.bound:g}, got "
                f"{np.abs(values).max():g}: a client did not follow the protocol"
            )
        if self.clip is None and not 0 < counted <= answers * (1 + 1e-6):
            raise SecureRoundError(
                f"the weights of {answers} clients must sum to more than 0 and at most {answers}, got {counted:g}"
            )
        private = self.clip is not None
        return RingSum(
            torch.from_numpy(values).float(),
            math.nan if private else counted,
            counted if self.adapts else math.nan,
        )
