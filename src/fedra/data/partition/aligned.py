"""Test sets with the class distribution of a client."""

from __future__ import annotations

import numpy as np

from fedra.data.partition.contract import Indices
from fedra.errors import DataError


def aligned_test(
    train_targets: Indices, test_targets: Indices, *, rng: np.random.Generator, size: int = 1000
) -> Indices:
    """Sample indices of the global test set that follow the class distribution q of one client's training targets.

    For each class c, min(available_c, floor(size * q_c)) test examples are sampled without replacement, ordered by
    class: the personalized test set of FedSoL (arXiv:2308.12532), with at most `size` examples. The test sets of two
    clients may overlap.
    """
    labels, counts = np.unique(train_targets, return_counts=True)
    drawn = [
        rng.permutation(np.flatnonzero(test_targets == label))[: size * count // len(train_targets)]
        for label, count in zip(labels, counts, strict=True)
    ]
    chosen = np.concatenate(drawn) if drawn else np.array([], dtype=np.int64)
    if len(chosen) == 0:
        raise DataError(
            f"a client's test set must have at least one example, got none of {len(test_targets)} for a client with "
            f"{len(labels)} classes: they are not in the test set, or too many for size={size}"
        )
    return chosen
