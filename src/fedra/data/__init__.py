"""Datasets as tensors made once: `load("cifar10")` reads one, `transform_for` says how batches see it."""

from __future__ import annotations

from fedra.data import sets as sets
from fedra.data.augment import AUGMENTATIONS, Transform, transform_for
from fedra.data.dataset import Dataset, Pairs, Split
from fedra.data.loading import DATASETS, data_root, load
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
    "load",
    "transform_for",
]
