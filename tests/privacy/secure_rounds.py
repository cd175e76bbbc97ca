"""A whole secure round in one process, with members that drop out at given stages."""

from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedra.privacy.secure import secure_client as client
from fedra.privacy.secure.secure_server import ServerRound


@dataclass
class Round:
    """`drops` says before which stage's reply a member disappears."""

    vectors: dict[int, np.ndarray]
    drops: dict[int, int] = field(default_factory=dict)
    degree: int = 0
    threshold: float = 2 / 3

    def __post_init__(self):
        self.identities = {member: Ed25519PrivateKey.generate() for member in self.vectors}
        length = len(next(iter(self.vectors.values())))
        self.server = ServerRound.open(
            list(self.vectors),
            length=length,
            layout="layout",
            mechanism="plain",
            threshold=self.threshold,
            degree=self.degree,
        )
        self.states, self.masked = {}, {}

    def sign(self, member):
        return self.identities[member].sign

    def verify(self, member, words, signature):
        try:
            self.identities[member].public_key().verify(signature, words)
        except InvalidSignature:
            return False
        return True

    def there(self, members, stage):
        return [member for member in members if self.drops.get(member) != stage]

    def join(self):
        replies = {}
        for member in self.there(self.vectors, 1):
            self.states[member], replies[member] = client.join_round(
                member, self.server.announcement, "layout", "plain", set(), self.sign(member)
            )
        return self.server.relay_keys(replies)

    def share(self, messages):
        replies = {}
        for member in self.there(messages, 2):
            self.states[member], replies[member] = client.share_secrets(
                self.states[member], messages[member], self.verify
            )
        return self.server.relay_shares(replies)

    def mask(self, messages):
        for member in self.there(messages, 3):
            self.states[member], self.masked[member] = client.mask_vector(
                self.states[member], messages[member], self.vectors[member]
            )
            self.server.add_masked(member, self.masked[member])
        return self.server.call_roll()

    def sign_roll(self, roll):
        replies = {}
        for member in self.there(roll.answered, 4):
            self.states[member], replies[member] = client.sign_roll(self.states[member], roll, self.sign(member))
        return self.server.relay_roll(replies)

    def reveal(self, message):
        for member in self.there(message.signatures, 5):
            self.states[member], shares = client.reveal_shares(self.states[member], message, self.verify)
            self.server.add_revealed(member, shares)

    def run(self):
        roll = self.mask(self.share(self.join()))
        self.reveal(self.sign_roll(roll))
        return roll.answered, self.server.finish()


def random_vectors(members, length=40, seed=0):
    rng = np.random.default_rng(seed)
    return {member: rng.integers(0, 2**32, length, dtype=np.uint32) for member in members}
