"""A secure sum in one process: all clients and the server run the protocol that a federation runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from fedra.core.released_fold import Released
from fedra.privacy.secure import secure_client as client
from fedra.privacy.secure.ring import Ring
from fedra.privacy.secure.secure_messages import SecureRoundError
from fedra.privacy.secure.secure_server import ServerRound


class SecureSum:
    """Adds up vectors through masks; what the server gets is the sum, with weights inside of it.

    A vector in the ring is the client's weight, followed by its weighted values. Clients are numbered in the order in
    which their vectors come.

    Args:
        members: Number of clients that joined the round; those that send no vector drop out after they shared their
            secrets.
        length: Length of the vectors.
        bound: Largest absolute value of a number.
        layout: Digest of the vectors' layout.
        threshold: Share of a client's neighbors that must stay to the end.
        degree: Number of neighbors; 0 for all.

    Example:
        ```python
        release = SecureSum(3, length=1000, bound=1.0, layout=layout.digest)
        release.add(vectors, [1.0, 1.0, 0.5])
        mean = release.finish().total
        ```
    """

    def __init__(
        self, members: int, length: int, bound: float, layout: str, threshold: float = 2 / 3, degree: int = 0
    ) -> None:
        self._ring = Ring.for_sum_of(max(members, 1), bound)
        self._weights = Ring.for_sum_of(max(members, 1), 1.0)
        self._identities = {member: Ed25519PrivateKey.generate() for member in range(members)}
        mechanism = f"sum in steps of {self._ring.step!r}"
        self._server = ServerRound.open(
            range(members), length=length + 1, layout=layout, mechanism=mechanism, threshold=threshold, degree=degree
        )
        self._states: dict[int, client.ClientRound] = {}
        keys = {}
        for member, identity in self._identities.items():
            self._states[member], keys[member] = client.join_round(
                member, self._server.announcement, layout, mechanism, (), identity.sign
            )
        shares = {}
        for member, message in self._server.relay_keys(keys).items():
            self._states[member], shares[member] = client.share_secrets(self._states[member], message, self._verify)
        self._delivered = self._server.relay_shares(shares)
        self._next = 0

    def add(self, vectors: Tensor, weights: Sequence[float]) -> None:
        """Mask each client's vector and add it to the sum."""
        for vector, weight in zip(vectors.double().cpu().numpy(), weights, strict=True):
            member, self._next = self._next, self._next + 1
            numbers = np.concatenate([self._weights.encode(np.array([weight])), self._ring.encode(weight * vector)])
            self._states[member], masked = client.mask_vector(self._states[member], self._delivered[member], numbers)
            self._server.add_masked(member, masked)

    def finish(self) -> Released:
        """Open the sum: everyone who sent a vector reveals the shares that remove the masks."""
        roll = self._server.call_roll()
        signatures = {}
        for member in roll.answered:
            identity = self._identities[member]
            self._states[member], signatures[member] = client.sign_roll(self._states[member], roll, identity.sign)
        signed = self._server.relay_roll(signatures)
        for member in signatures:
            self._states[member], shares = client.reveal_shares(self._states[member], signed, self._verify)
            self._server.add_revealed(member, shares)
        total = self._server.finish()
        weight = float(self._weights.decode(total[:1])[0])
        if weight <= 0:
            raise SecureRoundError("the clients of a secure sum must have positive weights, got none")
        return Released(torch.from_numpy(self._ring.decode(total[1:])).float(), weight)

    def _verify(self, member: int, words: bytes, signature: bytes) -> bool:
        try:
            self._identities[member].public_key().verify(signature, words)
        except InvalidSignature:
            return False
        return True


def secure_weights(sizes: Mapping[int, int] | Sequence[int]) -> float:
    """Return the number of examples that has weight 1: the largest of all clients.

    Args:
        sizes: Numbers of examples.

    Returns:
        The largest, as a divisor.

    Example:
        >>> secure_weights([3, 7])
        7.0
    """
    return float(max(sizes.values() if isinstance(sizes, Mapping) else sizes))
