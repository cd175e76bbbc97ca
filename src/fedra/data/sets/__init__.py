"""The loaders: one file for each family of sets; importing this package registers them all."""

from __future__ import annotations

from fedra.data.sets import (
    cifar,
    cinic,
    digits,
    faces,
    folder,
    medmnist,
    mnist,
    packed_faces,
    svhn,
    synthetic,
    synthetic_faces,
)

__all__ = [
    "cifar",
    "cinic",
    "digits",
    "faces",
    "folder",
    "medmnist",
    "mnist",
    "packed_faces",
    "svhn",
    "synthetic",
    "synthetic_faces",
]
