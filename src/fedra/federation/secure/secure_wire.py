"""The messages of a secure round: keys, shares, masked, roll, unmask.

The coordinator relays what sites send each other. What is secret in it is encrypted from site to site, and a site's
keys of a round are signed with the key that its certificate shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt, StringConstraints

from fedra.config.privacy_sections import SecureSection
from fedra.federation.wire import REFUSED, Finite, Packet, Sentence, TrainAsk, WireError, Words
from fedra.privacy.secure.secure_messages import Announcement, EncryptedShares, PublicKeys, RevealedShares, Roll

MOST_MEMBERS = 10_000
Hex = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2}){1,200}$")]
RoundName = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class MemberWords(Words):
    """A site in a secure round: its number there, its name, its certificate, and how many of its clients are asked."""

    number: NonNegativeInt
    site: Annotated[str, StringConstraints(max_length=100)]
    certificate: Annotated[str, StringConstraints(max_length=4000)]
    clients: PositiveInt


class KeysAsk(Words):
    """Opens a secure round: its name, who is in it, and what is added up.

    `steps`, `equal_steps` and `largest` are public about all clients: the mean number of local steps, whether all take
    as many, and the number of examples that has weight 1.
    """

    plan: str
    round: NonNegativeInt
    attempt: NonNegativeInt
    name: RoundName
    number: NonNegativeInt
    members: Annotated[list[MemberWords], Field(max_length=MOST_MEMBERS)]
    clients: list[NonNegativeInt]
    layout: Digest
    length: PositiveInt
    mechanism: Sentence
    clip: Annotated[Finite, Field(gt=0)] | None = None
    steps: Annotated[Finite, Field(gt=0)]
    equal_steps: bool
    largest: PositiveInt

    def announcement(self, section: SecureSection) -> Announcement:
        """Return the terms of the round, of which threshold and neighbors are the plan's."""
        return Announcement(
            bytes.fromhex(self.name),
            tuple(one.number for one in self.members),
            section.threshold,
            section.neighbors,
            self.length,
            self.layout,
            self.mechanism,
            directory_digest(self.members),
        )


class KeysAnswer(Words):
    """A site's public keys of the round, with its signature."""

    mask: Hex
    share: Hex
    signature: Hex

    @classmethod
    def of(cls, keys: PublicKeys) -> KeysAnswer:
        """Return keys as they travel."""
        return cls(mask=keys.mask.hex(), share=keys.share.hex(), signature=keys.signature.hex())

    def keys(self) -> PublicKeys:
        """Return the keys."""
        return PublicKeys(*(bytes.fromhex(text) for text in (self.mask, self.share, self.signature)))


class SharesAsk(Words):
    """Gives a site the keys of its neighbors, and asks for shares of its secrets."""

    plan: str
    name: RoundName
    keys: dict[NonNegativeInt, KeysAnswer]


class SharesAnswer(Words):
    """The shares for each neighbor, which it alone can read."""

    boxes: dict[NonNegativeInt, Hex]

    def shares(self) -> EncryptedShares:
        """Return the encrypted shares."""
        return EncryptedShares(from_hex(self.boxes))


class MaskedAsk(TrainAsk):
    """Asks for a round of training, and for the masked sum over the site's clients."""

    name: RoundName
    boxes: dict[NonNegativeInt, Hex]


class MaskedAnswer(Words):
    """Which clients are in the masked sum, which of them keep state at the site, and which lost theirs."""

    clients: list[NonNegativeInt]
    remembers: list[NonNegativeInt] = Field(default_factory=list)
    restarted: dict[NonNegativeInt, Sentence] = Field(default_factory=dict)


class RollAsk(Words):
    """Tells a site who answered and who did not, and asks it to sign that."""

    plan: str
    name: RoundName
    answered: list[NonNegativeInt]
    dropped: list[NonNegativeInt]

    def roll(self) -> Roll:
        """Return the roll."""
        return Roll(tuple(self.answered), tuple(self.dropped))


class RollAnswer(Words):
    """A site's signature of the roll."""

    signature: Hex


class UnmaskAsk(RollAsk):
    """Shows a site everybody's signatures of the roll, and asks for the shares that remove the masks."""

    signatures: dict[NonNegativeInt, Hex]


class UnmaskAnswer(Words):
    """Shares of the seeds of those who answered, and of the mask keys of those who did not; never both of one."""

    seeds: dict[NonNegativeInt, Hex]
    mask_keys: dict[NonNegativeInt, Hex]

    def revealed(self) -> RevealedShares:
        """Return the shares."""
        return RevealedShares(from_hex(self.seeds), from_hex(self.mask_keys))


ANSWERS: Mapping[str, type[Words]] = {
    "keys": KeysAnswer,
    "shares": SharesAnswer,
    "masked": MaskedAnswer,
    "roll": RollAnswer,
    "unmask": UnmaskAnswer,
}
"""The kinds of a secure round, in the order of its stages."""


def to_hex(values: Mapping[int, bytes]) -> dict[int, str]:
    """Return bytes by member as they travel."""
    return {member: value.hex() for member, value in values.items()}


def from_hex(values: Mapping[int, str]) -> dict[int, bytes]:
    """Return bytes by member."""
    return {member: bytes.fromhex(text) for member, text in values.items()}


def directory_digest(members: Sequence[MemberWords]) -> str:
    """Return a hash of who the members are; sites sign it, so all are shown the same list."""
    return hashlib.sha256(json.dumps([one.model_dump() for one in members], sort_keys=True).encode()).hexdigest()


def read_secure(answer: Packet, kind: str) -> Any:
    """Return the words of a site's answer in a stage; raises a `WireError` for anything else."""
    if answer.kind != kind or answer.kind == REFUSED:
        raise WireError(f"the answer to '{kind}' must be of that kind, got '{answer.kind[:20]}'")
    return answer.read(ANSWERS[kind])
