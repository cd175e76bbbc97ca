"""A client in a secure round: each function takes its state and a message, and returns the new state and the reply.

The state holds the round's secrets. Keep it where only the client can read it, and delete it after the round.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedra.privacy.secure.masks import SHARE, add_mask, derive_key
from fedra.privacy.secure.neighbors import find_neighbors, share_threshold
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
    Sign,
    SignedRoll,
    Verify,
)
from fedra.privacy.secure.shamir import SHARE_BYTES, split_secret


@dataclass(frozen=True)
class ClientRound:
    """A client's state in one secure round.

    Args:
        member: The client's number.
        announcement: The terms that it accepted.
        mask_key: Private key of the pairwise masks.
        share_key: Private key of the encrypted shares.
        seed: Seed of its own mask.
        neighbors: The neighbors' verified keys, from stage 2 on.
        shares: What the neighbors and the client itself hold of each other: (mask key share, seed share) by owner.
        stage: The last stage that the client answered.
        roll: The roll that it signed.
    """

    member: int
    announcement: Announcement
    mask_key: bytes = field(repr=False)
    share_key: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    neighbors: Mapping[int, PublicKeys] = field(default_factory=dict)
    shares: Mapping[int, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    stage: int = 1
    roll: Roll | None = None

    @property
    def all_neighbors(self) -> list[int]:
        """The neighbors by the terms of the round, whether or not they are still there."""
        terms = self.announcement
        return find_neighbors(self.member, terms.members, terms.degree, terms.round_name)

    @property
    def threshold(self) -> int:
        """How many shares open this client's secrets."""
        return share_threshold(self.announcement.threshold, len(self.all_neighbors))


def join_round(
    member: int, announcement: Announcement, layout: str, mechanism: str, seen: Container[bytes], sign: Sign
) -> tuple[ClientRound, PublicKeys]:
    """Stage 1: accept the terms and publish this round's keys.

    Args:
        member: The client's number.
        announcement: The terms.
        layout: The digest of the layout that the client itself computes.
        mechanism: Clip, noise and ring by the client's own configuration.
        seen: Names of earlier rounds: the same name twice would use a mask twice.
        sign: Signs with the client's long-term key.

    Returns:
        The state, and the public keys.

    Raises:
        SecureRoundError: If the terms are not acceptable.
    """
    members = announcement.members
    _require(len(members) >= FEWEST, f"a secure round needs at least {FEWEST} members, got {len(members)}")
    _require(list(members) == sorted(set(members)), "members of a secure round must be different and in order")
    _require(member in members, f"client {member} must be a member of a round that it joins")
    _require(0.5 < announcement.threshold < 1, f"the threshold must be between 0.5 and 1, got {announcement.threshold}")
    _require(len(announcement.round_name) == 16, "the name of a round must have 16 bytes")
    _require(announcement.round_name not in seen, "the name of a round must be new, got one that was used before")
    _require(announcement.layout == layout, "client and server must agree on the layout of a vector; versions differ")
    _require(
        announcement.mechanism == mechanism,
        f"client and server must agree on clip and noise, got '{announcement.mechanism}' instead of '{mechanism}'",
    )
    state = ClientRound(
        member=member,
        announcement=announcement,
        mask_key=X25519PrivateKey.generate().private_bytes_raw(),
        share_key=X25519PrivateKey.generate().private_bytes_raw(),
        seed=secrets.token_bytes(32),
    )
    keys = PublicKeys(_public(state.mask_key), _public(state.share_key), b"")
    return state, replace(keys, signature=sign(keys.signed_part(announcement, member)))


def share_secrets(state: ClientRound, message: NeighborKeys, verify: Verify) -> tuple[ClientRound, EncryptedShares]:
    """Stage 2: give every neighbor a share of its mask key and of its seed.

    Args:
        state: The state after stage 1.
        message: The neighbors' keys.
        verify: Verifies a member's long-term signature.

    Returns:
        The state, and the encrypted shares.

    Raises:
        SecureRoundError: If a key is not its owner's, or too few neighbors are there.
    """
    _require_stage(state, 1)
    keys, own = dict(message.keys), (_public(state.mask_key), _public(state.share_key))
    _require(set(keys) <= set(state.all_neighbors), "keys must come from neighbors, got another member's")
    for neighbor, theirs in keys.items():
        genuine = verify(neighbor, theirs.signed_part(state.announcement, neighbor), theirs.signature)
        _require(genuine, f"the keys of client {neighbor} must carry its signature under the terms of this round")
    public = [key for theirs in keys.values() for key in (theirs.mask, theirs.share)]
    _require(len({*public, *own}) == len(public) + 2, "keys of a round must all be different")
    _require_enough(state, len(keys) + 1)
    # A share's index must be the same for all who compute it, so it is the holder's place among the members.
    holders = {
        one: place for place, one in enumerate(state.announcement.members, start=1) if one in {*keys, state.member}
    }
    mask_shares = split_secret(state.mask_key, state.threshold, holders.values())
    seed_shares = split_secret(state.seed, state.threshold, holders.values())
    pairs = {holder: (mask_shares[index], seed_shares[index]) for holder, index in holders.items()}
    boxes = {
        neighbor: _box(state, theirs.share).encrypt(
            _nonce(state.member, neighbor), b"".join(pairs[neighbor]), _context(state, state.member, neighbor)
        )
        for neighbor, theirs in keys.items()
    }
    shares = {state.member: pairs[state.member]}
    return replace(state, neighbors=keys, shares=shares, stage=2), EncryptedShares(boxes)


def mask_vector(state: ClientRound, message: DeliveredShares, vector: np.ndarray) -> tuple[ClientRound, np.ndarray]:
    """Stage 3: open the neighbors' shares and mask the vector.

    Args:
        state: The state after stage 2.
        message: The shares that neighbors sent to this client.
        vector: The client's numbers in the ring (uint32).

    Returns:
        The state, and the masked vector.

    Raises:
        SecureRoundError: If a share was altered, or too few neighbors shared their secrets.
    """
    _require_stage(state, 2)
    _require(len(vector) == state.announcement.length, "a vector must have the length that was announced")
    _require(set(message.boxes) <= set(state.neighbors), "shares must come from neighbors whose keys were verified")
    _require_enough(state, len(message.boxes) + 1)
    shares = dict(state.shares)
    masked = np.array(vector, dtype=np.uint32)
    name = state.announcement.round_name
    for neighbor, box in sorted(message.boxes.items()):
        theirs = state.neighbors[neighbor]
        try:
            opened = _box(state, theirs.share).decrypt(
                _nonce(neighbor, state.member), bytes(box), _context(state, neighbor, state.member)
            )
        except InvalidTag:
            raise SecureRoundError(
                f"the shares of client {neighbor} must open with its key, but they were altered: the round is repeated"
            ) from None
        _require(len(opened) == 2 * SHARE_BYTES, f"the shares of client {neighbor} must have {2 * SHARE_BYTES} bytes")
        shares[neighbor] = (opened[:SHARE_BYTES], opened[SHARE_BYTES:])
        add_mask(masked, agree(state.mask_key, theirs.mask), name, 1 if neighbor < state.member else -1)
    add_mask(masked, state.seed, name, 1)
    return replace(state, shares=shares, stage=3), masked


def sign_roll(state: ClientRound, roll: Roll, sign: Sign) -> tuple[ClientRound, bytes]:
    """Stage 4: sign who answered and who did not, so every member is shown the same.

    Args:
        state: The state after stage 3.
        roll: Who answered, and who did not.
        sign: Signs with the client's long-term key.

    Returns:
        The state, and the signature.

    Raises:
        SecureRoundError: If the roll contradicts itself or leaves this client out.
    """
    _require_stage(state, 3)
    answered, dropped = set(roll.answered), set(roll.dropped)
    _require(not answered & dropped, "no member can have answered and dropped out: both secrets would be revealed")
    _require(state.member in answered, f"client {state.member} sent its vector and must be among those who answered")
    _require(answered | dropped <= set(state.announcement.members), "a roll must name members of the round only")
    _require(len(answered) >= FEWEST, f"a secure sum needs at least {FEWEST} answers, got {len(answered)}")
    around = answered & {*state.shares}
    _require_enough(state, len(around))
    return replace(state, roll=roll, stage=4), sign(roll.signed_part(state.announcement))


def reveal_shares(state: ClientRound, message: SignedRoll, verify: Verify) -> tuple[ClientRound, RevealedShares]:
    """Stage 5: reveal seed shares of those who answered and mask-key shares of those who did not.

    Args:
        state: The state after stage 4.
        message: The roll with the members' signatures.
        verify: Verifies a member's long-term signature.

    Returns:
        The state without its secrets, and the shares.

    Raises:
        SecureRoundError: If the roll differs from the signed one, or too few neighbors signed it.
    """
    _require_stage(state, 4)
    roll = message.roll
    _require(roll == state.roll, "the roll must be the one that this client signed")
    words = roll.signed_part(state.announcement)
    members = set(state.announcement.members)
    signers = {one for one, its in message.signatures.items() if one in members and verify(one, words, its)}
    _require(signers == set(message.signatures), "every signature of a roll must be its member's")
    _require_enough(state, len(signers & {*state.shares}))
    seeds = {one: state.shares[one][1] for one in roll.answered if one in state.shares}
    mask_keys = {one: state.shares[one][0] for one in roll.dropped if one in state.shares}
    forgotten = replace(state, mask_key=b"", share_key=b"", seed=b"", shares={}, stage=5)
    return forgotten, RevealedShares(seeds, mask_keys)


def agree(private: bytes, public: bytes) -> bytes:
    """Return the 32 bytes that two members have in common (X25519, RFC 7748).

    Args:
        private: A member's private key.
        public: The other's public key.

    Returns:
        The shared secret.
    """
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SecureRoundError("a public key must be a point of Curve25519 of full order") from None


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _box(state: ClientRound, share_key: bytes) -> ChaCha20Poly1305:
    secret = agree(state.share_key, share_key)
    return ChaCha20Poly1305(derive_key(secret, SHARE + state.announcement.round_name, 32))


def _nonce(sender: int, receiver: int) -> bytes:
    """Both directions have one key, new in every round; the pair makes the nonce unique."""
    return sender.to_bytes(6, "big") + receiver.to_bytes(6, "big")


def _context(state: ClientRound, sender: int, receiver: int) -> bytes:
    return state.announcement.digest() + _nonce(sender, receiver)


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise SecureRoundError(sentence)


def _require_stage(state: ClientRound, stage: int) -> None:
    _require(
        state.stage == stage, f"each stage of a secure round must be asked once and in order, got stage {stage + 1}"
    )


def _require_enough(state: ClientRound, count: int) -> None:
    _require(
        count >= state.threshold,
        f"at least {state.threshold} of client {state.member} and its neighbors must be there, got {count}",
    )
