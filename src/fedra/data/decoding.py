"""Checks of decoded arrays, and the stratified split for data sets without test data."""

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
    """Check images (N, C, H, W) and labels (N,) from `source`, and convert them to tensors."""
    if len(images) == 0:
        raise DataError(f"{source} must contain at least one image, got none: download it again")
    if len(images) != len(labels):
        raise DataError(
            f"{source} must have as many images as labels, got {len(images)} and {len(labels)}: download it again"
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        wrong = lowest if lowest < 0 else highest
        raise DataError(f"{source} must have labels between 0 and {classes - 1}, got {wrong}: check the file")
    # torch needs contiguous, writable memory; this copies only if necessary.
    pixels = np.require(images, requirements=["C", "W"])
    return Split(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))


def stratified_split(labels: Tensor, test_fraction: float) -> tuple[Tensor, Tensor]:
    """Return the training and test indices of a fixed stratified split, in the order of the data set.

    Every class has at least one training example.
    """
    # The stream of RandomState is the same in all NumPy versions, so the split is too.
    draw = np.random.RandomState(0)
    values = labels.numpy()
    is_test = np.zeros(len(values), dtype=bool)
    ends = np.unique(values, return_counts=True)[1].cumsum()
    for rows in np.split(np.argsort(values, kind="stable"), ends[:-1]):
        members = draw.permutation(rows)
        held_out = min(round(test_fraction * len(members)), len(members) - 1)
        is_test[members[:held_out]] = True
    return torch.from_numpy(np.flatnonzero(~is_test)), torch.from_numpy(np.flatnonzero(is_test))


def tensors(train: Split, test: Split) -> dict[str, Tensor]:
    """Flatten two splits to a dict for the cache."""
    return {
        "train_inputs": train.inputs,
        "train_targets": train.targets,
        "test_inputs": test.inputs,
        "test_targets": test.targets,
    }


def splits(stored: dict[str, Tensor]) -> tuple[Split, Split]:
    """Invert `tensors`."""
    return (
        Split(stored["train_inputs"], stored["train_targets"]),
        Split(stored["test_inputs"], stored["test_targets"]),
    )
