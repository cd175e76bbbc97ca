"""A test set with a client's own label mix."""

from __future__ import annotations

import numpy as np

from fedra.data.partition.contract import Indices
from fedra.errors import DataError


def aligned_test(
    train_targets: Indices, test_targets: Indices, *, rng: np.random.Generator, size: int = 1000
) -> Indices:
    """Indices into the global test set that follow the label mix q of one client's training targets.

    For each class c, min(available_c, floor(size * q_c)) test examples are drawn without replacement, in
    order of class: the personalized test set of FedSoL (arXiv:2308.12532), at most `size` long. The sets of
    two clients may overlap.
    """
    labels, counts = np.unique(train_targets, return_counts=True)
    drawn = [
        rng.permutation(np.flatnonzero(test_targets == label))[: size * count // len(train_targets)]
        for label, count in zip(labels, counts, strict=True)
    ]
    chosen = np.concatenate(drawn) if drawn else np.array([], dtype=np.int64)
    if len(chosen) == 0:
        raise DataError(
            f"a client with {len(labels)} classes gets no test example out of {len(test_targets)}: "
            f"its classes are absent from the test set or too many for size={size}"
        )
    return chosen
