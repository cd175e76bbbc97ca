"""The same label mix for everybody."""

from __future__ import annotations

import numpy as np

from fedra.data.partition.contract import PARTITIONS, Indices, check_clients
from fedra.data.partition.deal import by_class, collect


@PARTITIONS.add("iid")
def iid(targets: Indices, clients: int, seed: int, groups: Indices | None, *, shuffle: bool = True) -> list[Indices]:
    """Equal sizes and the same label mix for every client, up to one example.

    Client k holds the k-th test fold of a stratified K-fold: the examples in order of class are dealt round
    robin, so each class is spread within one example. `shuffle = false` keeps the data order inside a class,
    which is the IID split of FedArc's code. Unlike scikit-learn's, a class may be smaller than the cohort.
    """
    check_clients("iid", clients, len(targets), "examples")
    rng = np.random.default_rng(seed)
    # Classes in order of appearance, as StratifiedKFold takes them: it decides who gets the odd example.
    classes = sorted(by_class(targets), key=lambda members: int(members[0]))
    owners = []
    dealt = 0
    for members in classes:
        turn = np.sort(np.arange(dealt, dealt + len(members)) % clients)
        owners.append(rng.permutation(turn) if shuffle else turn)
        dealt += len(members)
    return [np.sort(part) for part in collect(np.concatenate(classes), np.concatenate(owners), clients)]
