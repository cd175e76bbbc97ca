"""What every loader checks about decoded arrays, and the one way to split a set that has no test part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedra.data.dataset import Split
from fedra.errors import DataError

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]


def as_split(images: Bytes, labels: NDArray[Any], classes: int, source: Path) -> Split:
    """Images (N, C, H, W) and labels (N,) from `source` as tensors, once they are known to fit together."""
    if len(images) == 0:
        raise DataError(f"{source} holds no images: fetch the file again")
    if len(images) != len(labels):
        raise DataError(f"{source} has {len(images)} images but {len(labels)} labels: fetch the files again")
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        wrong = lowest if lowest < 0 else highest
        raise DataError(f"{source} has the label {wrong} where 0 to {classes - 1} are valid: check the file")
    # Contiguous and writable, which torch wants; copied only when it is not.
    pixels = np.require(images, requirements=["C", "W"])
    return Split(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))


def stratified(labels: Tensor, test_fraction: float) -> tuple[Tensor, Tensor]:
    """Indices of a training and a test part with the same share of every class, always the same ones.

    A class keeps at least one training example; each part is in the order of the set.
    """
    # RandomState: its stream is frozen across numpy versions, so the split is the same everywhere.
    draw = np.random.RandomState(0)
    values = labels.numpy()
    is_test = np.zeros(len(values), dtype=bool)
    for label in np.unique(values):
        members = draw.permutation(np.flatnonzero(values == label))
        held_out = min(round(test_fraction * len(members)), len(members) - 1)
        is_test[members[:held_out]] = True
    return torch.from_numpy(np.flatnonzero(~is_test)), torch.from_numpy(np.flatnonzero(is_test))


def tensors(train: Split, test: Split) -> dict[str, Tensor]:
    """Two splits as the flat dict that the cache keeps."""
    return {
        "train_inputs": train.inputs,
        "train_targets": train.targets,
        "test_inputs": test.inputs,
        "test_targets": test.targets,
    }


def splits(kept: dict[str, Tensor]) -> tuple[Split, Split]:
    """The inverse of `tensors`."""
    return (
        Split(kept["train_inputs"], kept["train_targets"]),
        Split(kept["test_inputs"], kept["test_targets"]),
    )
