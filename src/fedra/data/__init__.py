"""Data sets as tensors in memory.

`load("cifar10")` loads a data set by name, `from_arrays` builds one from your own arrays, `register` adds your own
loading function under a name, and `transform_for` returns the preprocessing and augmentation of a data set.
"""

from __future__ import annotations

from fedra.data.arrays import from_arrays
from fedra.data.augment import AUGMENTATIONS, Transform, transform_for
from fedra.data.dataset import Dataset, Pairs, Split
from fedra.data.loading import DATASETS, data_root, load, register
from fedra.data.pairs import draw_pairs

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "Dataset",
    "Pairs",
    "Split",
    "Transform",
    "data_root",
    "draw_pairs",
    "from_arrays",
    "load",
    "register",
    "transform_for",
]
