"""Data sets as tensors made once.

`load("cifar10")` reads one by its name, `from_arrays` makes one of your own arrays, `register` gives a loading function
of your own a name, and `transform_for` says how batches see a data set.
"""

from __future__ import annotations

from fedra.data import sets as sets
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
