"""The loaders: one file for each family of sets; importing this package registers them all."""

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
