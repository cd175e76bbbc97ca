"""The messages of a secure round. The server relays them; what is secret in them is encrypted from client to client."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedra.errors import RunError

Sign = Callable[[bytes], bytes]
"""Signs bytes with the client's long-term key."""
Verify = Callable[[int, bytes, bytes], bool]
"""Whether the signature (last) of some bytes is a member's (first)."""

FEWEST = 3
"""Fewest members of a secure round: in a sum of two, each member knows the other's vector."""


class SecureRoundError(RunError):
    """A secure round was refused or cannot be finished; nothing of any client was learned.

    Args:
        message: What must hold, what was given, and what to do.

    Example:
        >>> raise_it = SecureRoundError("a secure round needs at least 3 members, got 2")
    """


@dataclass(frozen=True)
class Announcement:
    """The terms of a round, from the server to every member (stage 1).

    Args:
        round_name: 16 random bytes, different in every round and attempt.
        members: The members' numbers in ascending order.
        threshold: Share of a neighborhood whose shares open a secret.
        degree: Number of neighbors; 0 for all.
        length: Number of values in a vector.
        layout: Digest of what each value of the vector means.
        mechanism: Clip, noise and ring in words that the client compares with its own configuration.
        directory: Digest of who the members are, where they have names and certificates.
    """

    round_name: bytes
    members: tuple[int, ...]
    threshold: float
    degree: int
    length: int
    layout: str
    mechanism: str
    directory: str = ""

    def digest(self) -> bytes:
        """A hash of all terms; clients sign it, so a server cannot tell different members different terms."""
        words = {**vars(self), "round_name": self.round_name.hex()}
        return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).digest()


@dataclass(frozen=True)
class PublicKeys:
    """A member's keys of this round, signed by its long-term key (reply of stage 1).

    Args:
        mask: X25519 public key of the pairwise masks.
        share: X25519 public key of the encrypted shares; another one, since the mask key may be revealed.
        signature: Over the terms, the member and both keys.
    """

    mask: bytes
    share: bytes
    signature: bytes

    def signed_part(self, announcement: Announcement, member: int) -> bytes:
        """The bytes that the signature covers."""
        return b"fedra keys " + announcement.digest() + member.to_bytes(8, "big") + self.mask + self.share


@dataclass(frozen=True)
class NeighborKeys:
    """The keys of a member's neighbors that are still there (stage 2)."""

    keys: Mapping[int, PublicKeys]


@dataclass(frozen=True)
class EncryptedShares:
    """A member's shares for each neighbor, readable by that neighbor alone (reply of stage 2)."""

    boxes: Mapping[int, bytes] = field(repr=False)


@dataclass(frozen=True)
class DeliveredShares:
    """The encrypted shares that a member's neighbors sent to it (stage 3). The reply is the masked vector."""

    boxes: Mapping[int, bytes] = field(repr=False)


@dataclass(frozen=True)
class Roll:
    """Who sent a masked vector and who did not (stage 4).

    Args:
        answered: Members whose masked vectors were added up.
        dropped: Members that shared their secrets and then sent no vector.
    """

    answered: tuple[int, ...]
    dropped: tuple[int, ...]

    def signed_part(self, announcement: Announcement) -> bytes:
        """The bytes that members sign, so a server cannot show different members different rolls."""
        words = json.dumps([list(self.answered), list(self.dropped)])
        return b"fedra roll " + announcement.digest() + words.encode()


@dataclass(frozen=True)
class SignedRoll:
    """The roll with the signatures of the members that saw it (stage 5)."""

    roll: Roll
    signatures: Mapping[int, bytes]


@dataclass(frozen=True)
class RevealedShares:
    """Shares of the seeds of those who answered, and of the mask keys of those who did not (reply of stage 5)."""

    seeds: Mapping[int, bytes] = field(repr=False)
    mask_keys: Mapping[int, bytes] = field(repr=False)
