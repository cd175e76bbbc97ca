"""Who shares secrets with whom: all pairs, or a sparse random ring that every client can recompute."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from fedra.errors import ConfigError

SPARSE_ABOVE = 128
"""Largest cohort in which all pairs are allowed: the work of a client grows with its number of neighbors."""


def find_neighbors(member: int, members: Sequence[int], degree: int, round_name: bytes) -> list[int]:
    """Return a member's neighbors, the same for all who compute them.

    Args:
        member: The member.
        members: All members of the round.
        degree: Even number of neighbors; 0 for all others.
        round_name: The round's name, which arranges the members on a ring.

    Returns:
        The neighbors in ascending order, without the member itself.

    Example:
        >>> find_neighbors(2, [1, 2, 3], 0, b"round")
        [1, 3]
    """
    if degree == 0 or degree >= len(members) - 1:
        return sorted(other for other in members if other != member)
    ring = sorted(members, key=lambda one: hashlib.sha256(round_name + one.to_bytes(8, "big")).digest())
    place = ring.index(member)
    around = [offset for half in range(1, degree // 2 + 1) for offset in (-half, half)]
    return sorted({ring[(place + offset) % len(ring)] for offset in around})


def check_degree(degree: int, members: int) -> None:
    """Raise unless the degree is safe for a cohort.

    Args:
        degree: Even number of neighbors; 0 for all others.
        members: Size of the cohort.

    Raises:
        ConfigError: If it is odd, too small to keep the graph connected after drop-outs, or 0 in a large cohort.
    """
    least = 2 * math.ceil(math.log2(max(members, 2))) + 2
    if degree == 0 and members > SPARSE_ABOVE:
        raise ConfigError(
            f"secure.neighbors must not be 0 (all pairs) above {SPARSE_ABOVE} clients in a round, got {members}: "
            f"set it to {least} or more"
        )
    if degree and (degree % 2 or (degree < least and degree < members - 1)):
        raise ConfigError(
            f"secure.neighbors must be even and at least {least} for {members} clients in a round, got {degree}"
        )


def share_threshold(share: float, neighbors: int) -> int:
    """Return how many shares open a secret that a client and its neighbors hold.

    Args:
        share: The configured share, at least one half: otherwise two groups could open both secrets of a client.
        neighbors: Number of the client's neighbors.

    Returns:
        The threshold, at least 2.

    Example:
        >>> share_threshold(2 / 3, 5)
        5
    """
    return max(min(math.floor(share * (neighbors + 1)) + 1, neighbors + 1), 2)
