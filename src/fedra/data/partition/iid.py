"""Equal class distributions for all clients."""

from __future__ import annotations

import numpy as np

from fedra.data.partition.contract import PARTITIONS, Indices, check_clients
from fedra.data.partition.deal import by_class, collect


@PARTITIONS.add("iid")
def iid(targets: Indices, clients: int, seed: int, groups: Indices | None, *, shuffle: bool = True) -> list[Indices]:
    """Give every client the same size and class distribution, up to one example.

    Client k gets the k-th test fold of a stratified K-fold split: examples sorted by class are assigned round-robin.
    `shuffle = false` keeps the data order within a class, like the IID split of FedArc's code. Unlike in scikit-learn,
    a class may have fewer examples than there are clients.
    """
    check_clients("iid", clients, len(targets), "examples")
    rng = np.random.default_rng(seed)
    # Classes in order of appearance, like StratifiedKFold, which determines the clients with one more example.
    classes = sorted(by_class(targets), key=lambda members: int(members[0]))
    owners = []
    assigned = 0
    for members in classes:
        turn = np.sort(np.arange(assigned, assigned + len(members)) % clients)
        owners.append(rng.permutation(turn) if shuffle else turn)
        assigned += len(members)
    return [np.sort(part) for part in collect(np.concatenate(classes), np.concatenate(owners), clients)]
