"""Extreme label skew: one class per client."""

from __future__ import annotations

import numpy as np

from fedra.data.partition.contract import PARTITIONS, Indices, check_clients
from fedra.data.partition.deal import by_class, even_counts


@PARTITIONS.add("one-class")
def one_class(targets: Indices, clients: int, seed: int, groups: Indices | None) -> list[Indices]:
    """Assign examples of a single class to each client, as FedAwS (arXiv:2004.10342) assumes.

    Without a number of clients, there is one client per class. With more clients than classes, the clients are
    distributed evenly over the classes (with the remainder for the largest) and divide their class at random. With
    fewer clients, whole classes are assigned round-robin, so a client has several.
    """
    classes = by_class(targets)
    clients = clients or len(classes)
    check_clients("one-class", clients, len(targets), "examples")
    if clients < len(classes):
        return [np.concatenate(classes[client::clients]) for client in range(clients)]
    rng = np.random.default_rng(seed)
    owners = even_counts(clients, np.array([len(members) for members in classes]))
    return [
        part
        for members, count in zip(classes, owners, strict=True)
        for part in np.array_split(rng.permutation(members), count)
    ]
