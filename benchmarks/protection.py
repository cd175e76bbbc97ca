"""What protection costs: masks and noise of a client in a secure sum, and robust rules against the plain mean.

One thread. A vector has a million numbers, a client 20 neighbors, a round 100 clients.
"""

from __future__ import annotations

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from measure import Row, in_turns, main, parser

from fedra.algorithms import fedavg
from fedra.core.model import Weights
from fedra.core.part import Combine
from fedra.core.round import Fold, init_server
from fedra.core.view import Population, Upload
from fedra.parts import Bulyan, CenteredClip, GeometricMedian, Median, MultiKrum, NormBound, PlainMean, TrimmedMean
from fedra.privacy.secret import Secret
from fedra.privacy.secure import secure_client
from fedra.privacy.secure.ring_vectors import RingVectors
from fedra.privacy.secure.secure_messages import DeliveredShares
from fedra.privacy.secure.secure_server import ServerRound

NEIGHBORS, CLIENTS, LENGTH = 20, 100, 1_000_000
AIMS = {"geometric-median": 40.0, "trimmed-mean": 25.0, "median": 25.0, "multi-krum": 40.0, "centered-clip": 40.0}


def masking_client(length: int) -> tuple[secure_client.ClientRound, DeliveredShares]:
    """A client that shared its secrets with 20 neighbors, and the shares that they sent to it."""
    identities = {member: Ed25519PrivateKey.generate() for member in range(NEIGHBORS + 1)}
    server = ServerRound.open(list(identities), length=length, layout="", mechanism="")
    states, keys, shares = {}, {}, {}
    for member, identity in identities.items():
        states[member], keys[member] = secure_client.join_round(member, server.announcement, "", "", (), identity.sign)
    for member, message in server.relay_keys(keys).items():
        states[member], shares[member] = secure_client.share_secrets(states[member], message, lambda *_: True)
    return states[0], server.relay_shares(shares)[0]


def measure_masks(length: int, repeats: int) -> list[Row]:
    state, delivered = masking_client(length)
    numbers = np.zeros(length, dtype=np.uint32)
    plain = RingVectors(clients=CLIENTS, length=length, bound=1.0, clip=1.0)
    noisy = RingVectors(clients=CLIENTS, length=length, bound=1.0, clip=1.0, noise=1.0, fewest=CLIENTS // 2)
    vector = torch.randn(length, generator=torch.Generator().manual_seed(0))
    found = in_turns(
        {
            "masks": lambda: secure_client.mask_vector(state, delivered, numbers),
            "integers": lambda: plain.encode(vector, 1.0),
            "integers with noise": lambda: noisy.encode(vector, 1.0, Secret(bytes(32)), 1),
        },
        repeats,
    )
    size = f"{length:,} numbers"
    return [
        Row(f"masks of a client, {NEIGHBORS} neighbors, {size}", found.best("masks"), "s", 0.1),
        Row(f"clip and integers of a client, {size}", found.best("integers"), "s"),
        Row(f"the same with Skellam noise, {size}", found.best("integers with noise"), "s"),
    ]


def measure_rules(clients: int, length: int, repeats: int) -> list[Row]:
    draw = torch.Generator().manual_seed(0)
    deltas = [{"w": torch.randn(length, generator=draw)} for _ in range(clients)]
    uploads = [
        Upload(delta=delta, buffers={}, examples=10, steps=1, effective_steps=1.0, extras={}, metrics={})
        for delta in deltas
    ]

    def fold(rule: Combine) -> None:
        algorithm = fedavg().plus(rule)
        opened = Fold(algorithm)
        for upload in uploads:
            opened.add(upload)
        server = init_server(algorithm, Weights({"w": torch.zeros(length)}, {}))
        opened.finish(server, Population(clients=clients, examples=clients))

    rules: tuple[Combine, ...] = (
        PlainMean(),
        NormBound(),
        MultiKrum(),
        GeometricMedian(),
        CenteredClip(),
        Median(),
        TrimmedMean(trim=0.2),
        Bulyan(malicious=0.1),
    )
    found = in_turns({rule.name: lambda rule=rule: fold(rule) for rule in rules}, repeats)
    size = f"{clients} x {length:,}"
    return [
        Row(f"{rule.name} against the plain mean, {size}", found.ratio(rule.name, "plain-mean"), "x",
            AIMS.get(rule.name), note=found.note(rule.name, "plain-mean"))
        for rule in rules[1:]
    ]  # fmt: skip


def measure(quick: bool) -> list[Row]:
    """The rows of both."""
    torch.set_num_threads(1)
    length, clients, repeats = (2_000, 12, 1) if quick else (LENGTH, CLIENTS, 3)
    return [*measure_masks(length, repeats), *measure_rules(clients, length, repeats)]


if __name__ == "__main__":
    main(measure, parser(__doc__))
