"""A secure sum in one process: all clients and the server run the protocol that a federation runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedra.privacy.secure import secure_client as client
from fedra.privacy.secure.ring_vectors import RingVectors
from fedra.privacy.secure.secure_server import ServerRound


def sum_securely(
    numbers: Sequence[np.ndarray],
    vectors: RingVectors,
    layout: str,
    *,
    gone: Sequence[int] = (),
    threshold: float = 2 / 3,
    degree: int = 0,
) -> np.ndarray:
    """Add up encoded vectors by the protocol; the server sees masked vectors and the sum.

    Args:
        numbers: The encoded vectors of the clients that answer.
        vectors: How they were encoded.
        layout: Digest of the vectors' layout.
        gone: For every client that drops out, the last stage that it takes part in: 0 none, 1 keys, 2 shares.
        threshold: Share of a client's neighbors that must stay to the end.
        degree: Number of neighbors; 0 for all.

    Returns:
        The sum modulo 2^32.

    Raises:
        SecureRoundError: If too few are left. Nothing is learned then.

    Example:
        ```python
        total = sum_securely([vectors.encode(one, 1.0) for one in updates], vectors, layout.digest)
        ```
    """
    last = dict(enumerate([3] * len(numbers) + list(gone)))
    identities = {member: Ed25519PrivateKey.generate() for member in last}
    server = ServerRound.open(
        range(len(last)),
        length=vectors.size,
        layout=layout,
        mechanism=vectors.words,
        threshold=threshold,
        degree=degree,
    )

    def verify(member: int, words: bytes, signature: bytes) -> bool:
        try:
            identities[member].public_key().verify(signature, words)
        except InvalidSignature:
            return False
        return True

    states, keys = {}, {}
    for member in _present(last, 1):
        states[member], keys[member] = client.join_round(
            member, server.announcement, layout, vectors.words, (), identities[member].sign
        )
    shares = {}
    for member, message in server.relay_keys(keys).items():
        if last[member] >= 2:
            states[member], shares[member] = client.share_secrets(states[member], message, verify)
    for member, delivered in server.relay_shares(shares).items():
        if last[member] >= 3:
            states[member], masked = client.mask_vector(states[member], delivered, numbers[member])
            server.add_masked(member, masked)
    roll = server.call_roll()
    signatures = {}
    for member in roll.answered:
        states[member], signatures[member] = client.sign_roll(states[member], roll, identities[member].sign)
    signed = server.relay_roll(signatures)
    for member in signatures:
        states[member], revealed = client.reveal_shares(states[member], signed, verify)
        server.add_revealed(member, revealed)
    return server.finish()


def _present(last: Mapping[int, int], stage: int) -> list[int]:
    return [member for member, found in last.items() if found >= stage]
