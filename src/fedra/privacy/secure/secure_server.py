"""The server of a secure round: it relays messages, adds masked vectors up, and removes the masks from the sum."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedra.privacy.secure.masks import add_mask
from fedra.privacy.secure.neighbors import find_neighbors, share_threshold
from fedra.privacy.secure.secure_client import agree
from fedra.privacy.secure.secure_messages import (
    FEWEST,
    Announcement,
    DeliveredShares,
    EncryptedShares,
    NeighborKeys,
    PublicKeys,
    RevealedShares,
    Roll,
    SecureRoundError,
    SignedRoll,
)
from fedra.privacy.secure.shamir import SHARE_BYTES, join_shares


@dataclass
class ServerRound:
    """The server's side of one secure round. Members that stop answering are simply not in the later stages.

    Args:
        announcement: The terms.

    Example:
        ```python
        server = ServerRound.open([3, 5, 8], length=1000, layout=digest, mechanism="clip 1.0")
        ```
    """

    announcement: Announcement
    keys: dict[int, PublicKeys] = field(default_factory=dict)
    boxes: dict[int, EncryptedShares] = field(default_factory=dict)
    total: np.ndarray | None = None
    answered: list[int] = field(default_factory=list)
    signatures: dict[int, bytes] = field(default_factory=dict)
    revealed: dict[int, RevealedShares] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        members: Sequence[int],
        *,
        length: int,
        layout: str,
        mechanism: str,
        threshold: float = 2 / 3,
        degree: int = 0,
    ) -> ServerRound:
        """Open a round with a new name.

        Args:
            members: The cohort.
            length: Number of values in a vector.
            layout: Digest of what each value means.
            mechanism: Clip, noise and ring in words.
            threshold: Share of a neighborhood whose shares open a secret.
            degree: Number of neighbors; 0 for all.

        Returns:
            The round; send `announcement` to every member.
        """
        ordered = tuple(sorted(members))
        if len(ordered) < FEWEST:
            raise SecureRoundError(f"a secure round needs at least {FEWEST} members, got {len(ordered)}")
        name = secrets.token_bytes(16)
        return cls(Announcement(name, ordered, threshold, degree, length, layout, mechanism))

    def neighbors(self, member: int) -> list[int]:
        """A member's neighbors, whether or not they are still there."""
        terms = self.announcement
        return find_neighbors(member, terms.members, terms.degree, terms.round_name)

    def threshold(self, member: int) -> int:
        """How many shares open a member's secrets."""
        return share_threshold(self.announcement.threshold, len(self.neighbors(member)))

    def relay_keys(self, replies: Mapping[int, PublicKeys]) -> dict[int, NeighborKeys]:
        """Take the keys of stage 1; returns the message of stage 2 for every member that replied."""
        self.keys = dict(replies)
        return {
            member: NeighborKeys({other: replies[other] for other in self.neighbors(member) if other in replies})
            for member in replies
        }

    def relay_shares(self, replies: Mapping[int, EncryptedShares]) -> dict[int, DeliveredShares]:
        """Take the shares of stage 2; returns the message of stage 3 for every member that replied."""
        self.boxes = dict(replies)
        return {
            member: DeliveredShares(
                {other: replies[other].boxes[member] for other in self.neighbors(member) if other in replies}
            )
            for member in replies
        }

    def add_masked(self, member: int, vector: np.ndarray) -> None:
        """Add a member's masked vector of stage 3 to the sum; the vector need not be kept."""
        if member not in self.boxes or member in self.answered:
            raise SecureRoundError(f"client {member} must send its vector once, after its shares")
        if vector.dtype != np.uint32 or vector.shape != (self.announcement.length,):
            raise SecureRoundError(
                f"a masked vector must be {self.announcement.length} numbers of type uint32, got {vector.shape} of "
                f"{vector.dtype} from client {member}"
            )
        self.total = vector.copy() if self.total is None else self.total
        if self.answered:
            np.add(self.total, vector, out=self.total)
        self.answered.append(member)

    def call_roll(self) -> Roll:
        """Return the message of stage 4 for everyone who answered.

        Raises:
            SecureRoundError: If too few answered, so no secret could be recovered.
        """
        answered = set(self.answered)
        if len(answered) < FEWEST:
            raise SecureRoundError(f"a secure sum needs at least {FEWEST} answers, got {len(answered)}")
        for member in self.boxes:
            self._require_enough(member, len(answered & {member, *self.neighbors(member)}))
        return Roll(tuple(sorted(answered)), tuple(sorted(set(self.boxes) - answered)))

    def relay_roll(self, replies: Mapping[int, bytes]) -> SignedRoll:
        """Take the signatures of stage 4; returns the message of stage 5 for everyone who signed."""
        self.signatures = dict(replies)
        return SignedRoll(self.call_roll(), self.signatures)

    def add_revealed(self, member: int, reply: RevealedShares) -> None:
        """Take the shares of stage 5."""
        self.revealed[member] = reply

    def may_finish(self) -> bool:
        """Whether enough shares came back to open the sum."""
        roll = self.call_roll()
        held = [(one, reply.seeds) for one in roll.answered for reply in self.revealed.values()]
        held += [(one, reply.mask_keys) for one in roll.dropped for reply in self.revealed.values()]
        counts = dict.fromkeys((*roll.answered, *roll.dropped), 0)
        for one, shares in held:
            counts[one] += one in shares
        return all(count >= self.threshold(one) for one, count in counts.items())

    def finish(self) -> np.ndarray:
        """Remove the masks that are left in the sum.

        Returns:
            The sum over everyone who answered, modulo 2^32.

        Raises:
            SecureRoundError: If too few shares came back, or shares are wrong. Nothing is learned then.
        """
        roll = self.call_roll()
        assert self.total is not None  # call_roll found answers
        total, name = self.total.copy(), self.announcement.round_name
        seeds = {member: self._recover(member, seed=True) for member in roll.answered}
        mask_keys = {member: self._recover(member, seed=False) for member in roll.dropped}
        for seed in seeds.values():
            add_mask(total, seed, name, -1)
        for member, private in mask_keys.items():
            public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
            if public != self.keys[member].mask:
                raise SecureRoundError(f"the recovered mask key of client {member} must fit its public key")
            for other in set(self.neighbors(member)) & set(roll.answered):
                # `other` added the mask if `member` has the smaller number
                add_mask(total, agree(private, self.keys[other].mask), name, -1 if member < other else 1)
        return total

    def _recover(self, owner: int, seed: bool) -> bytes:
        place = {one: index for index, one in enumerate(self.announcement.members, start=1)}
        shares = {}
        for holder, reply in sorted(self.revealed.items()):
            held = (reply.seeds if seed else reply.mask_keys).get(owner)
            if held is not None and len(held) == SHARE_BYTES:
                shares[place[holder]] = bytes(held)
        self._require_enough(owner, len(shares))
        return join_shares(dict(list(shares.items())[: self.threshold(owner)]))

    def _require_enough(self, member: int, count: int) -> None:
        if count < self.threshold(member):
            raise SecureRoundError(
                f"at least {self.threshold(member)} of client {member} and its neighbors must stay to the end of a "
                f"secure round, got {count}: the round is repeated with other members"
            )
