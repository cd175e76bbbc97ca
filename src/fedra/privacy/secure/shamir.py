"""Shamir's secret sharing (1979): any `threshold` shares give the secret, fewer say nothing about it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping

from fedra.errors import RunError

PRIME = 2**256 + 297
"""The smallest prime above 2^256, so 32 bytes are one element of the field."""
SHARE_BYTES = 33


def split_secret(
    secret: bytes, threshold: int, indices: Iterable[int], draw: Callable[[int], int] = secrets.randbelow
) -> dict[int, bytes]:
    """Split a secret into shares.

    Args:
        secret: 32 bytes.
        threshold: How many shares give the secret.
        indices: A positive number for each holder; index 0 would be the secret itself.
        draw: Uniform random integers below a bound.

    Returns:
        A share of 33 bytes for each index.

    Example:
        >>> shares = split_secret(bytes(range(32)), 2, [1, 2, 3])
        >>> join_shares({1: shares[1], 3: shares[3]}) == bytes(range(32))
        True
    """
    indices = list(indices)
    if len(set(indices)) != len(indices) or any(index <= 0 for index in indices):
        raise ValueError("indices of shares must be positive and different")
    if not 1 <= threshold <= len(indices):
        raise ValueError(f"the threshold must be between 1 and {len(indices)}, got {threshold}")
    coefficients = [int.from_bytes(secret, "big"), *(draw(PRIME) for _ in range(threshold - 1))]
    return {index: _evaluate(coefficients, index).to_bytes(SHARE_BYTES, "big") for index in indices}


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """Recover a secret from enough shares.

    Args:
        shares: At least `threshold` shares by index.

    Returns:
        The 32 bytes.

    Raises:
        RunError: If the shares do not belong to 32 bytes, because one of them is wrong.

    Example:
        >>> join_shares(split_secret(b"x" * 32, 1, [7]))[:1]
        b'x'
    """
    total = 0
    for index, share in shares.items():
        numerator = denominator = 1
        for other in shares.keys() - {index}:
            numerator, denominator = numerator * -other % PRIME, denominator * (index - other) % PRIME
        total = (total + int.from_bytes(share, "big") * numerator * pow(denominator, -1, PRIME)) % PRIME
    if total >= 2**256:
        raise RunError("shares of a secret must fit together, got at least one wrong share: the round is repeated")
    return total.to_bytes(32, "big")


def _evaluate(coefficients: list[int], index: int) -> int:
    """The polynomial at `index` by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * index + coefficient) % PRIME
    return value
