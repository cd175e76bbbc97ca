"""Loaders of data sets, one file per family; importing this package registers all of them."""

from __future__ import annotations

from fedra.data.sets import (
    cifar,
    cinic,
    digits,
    folder,
    medmnist,
    mnist,
    npz,
    svhn,
    synthetic,
)

__all__ = [
    "cifar",
    "cinic",
    "digits",
    "folder",
    "medmnist",
    "mnist",
    "npz",
    "svhn",
    "synthetic",
]
