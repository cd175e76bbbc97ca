"""The owners that the data set itself names."""

from __future__ import annotations

import heapq

import numpy as np

from fedra.data.partition.contract import PARTITIONS, Indices, check_clients
from fedra.data.partition.deal import by_class
from fedra.errors import ConfigError


@PARTITIONS.add("natural")
def natural(targets: Indices, clients: int, seed: int, groups: Indices | None) -> list[Indices]:
    """One client per group of the data set: a writer, a hospital, a folder.

    Without a number of clients, or with the number of groups, client k is group k. With fewer clients,
    whole groups are merged: from the largest group on, each joins the client with the fewest examples.
    """
    if groups is None:
        raise ConfigError(
            "the partition 'natural' needs a data set that names the owner of each example, "
            "and this one has no groups: choose another partition"
        )
    owners = by_class(groups)
    clients = clients or len(owners)
    check_clients("natural", clients, len(owners), "groups")
    return owners if clients == len(owners) else _merged(owners, clients)


def _merged(groups: list[Indices], clients: int) -> list[Indices]:
    held: list[list[Indices]] = [[] for _ in range(clients)]
    smallest = [(0, client) for client in range(clients)]
    for group in sorted(groups, key=len, reverse=True):
        size, client = heapq.heappop(smallest)
        held[client].append(group)
        heapq.heappush(smallest, (size + len(group), client))
    return [np.concatenate(own) for own in held]
