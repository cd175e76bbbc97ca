"""MNIST and Fashion-MNIST in the idx format, compressed or not.

LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998; Xiao et al., Fashion-MNIST, 2017.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from fedra.data.cache import cached
from fedra.data.dataset import Dataset, Split
from fedra.data.decoding import Bytes, as_split, splits, tensors
from fedra.data.download import RemoteFile, locate
from fedra.data.loading import DATASETS
from fedra.errors import DataError
from fedra.file_reading import LARGE, read_file

LARGEST, PIECE = 2**30, 2**20
"""Most bytes of an unpacked file, of which the largest official one has 47 MB, and the bytes of one read."""
NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # last, because it has no TLS
)
FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
FASHION_CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


@DATASETS.add("mnist")
def mnist(root: Path) -> Dataset:
    """60,000 + 10,000 gray images of handwritten digits, 28 x 28 pixels."""
    train, test = _load(root, "mnist", ("mnist", "MNIST/raw"), MNIST_MIRRORS, MNIST_MD5)
    classes = tuple("0123456789")
    return Dataset("mnist", train, test, classes, mean=(0.1307,), std=(0.3081,), augment=("crop", "flip"))


@DATASETS.add("fashion-mnist")
def fashion_mnist(root: Path) -> Dataset:
    """60,000 + 10,000 gray images of clothes, 28 x 28 pixels."""
    folders = ("fashion-mnist", "FashionMNIST/raw")
    train, test = _load(root, "fashion-mnist", folders, FASHION_MIRRORS, FASHION_MD5)
    augment = ("crop", "flip")
    return Dataset("fashion-mnist", train, test, FASHION_CLASSES, mean=(0.2860,), std=(0.3530,), augment=augment)


def _load(
    root: Path, name: str, folders: tuple[str, ...], mirrors: tuple[str, ...], checksums: tuple[str, ...]
) -> tuple[Split, Split]:
    searched = tuple(root / folder for folder in folders)
    files = [
        RemoteFile(file, tuple(mirror + file for mirror in mirrors), md5=md5)
        for file, md5 in zip(NAMES, checksums, strict=True)
    ]
    paths = [locate(file, searched, (file.name.removesuffix(".gz"),)) for file in files]
    return splits(cached(root, name, paths, lambda: tensors(_split(*paths[:2]), _split(*paths[2:]))))


def _split(images: Path, labels: Path) -> Split:
    return as_split(read_idx(images, 3)[:, None], read_idx(labels, 1), 10, labels)


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Read an idx file of uint8: the bytes 0, 0, 8, number of dimensions, big-endian sizes, values."""
    content = _content(path)
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(
            f"{path} must be an idx file of bytes with {dimensions} dimension(s), got one that starts with "
            f"{content[:4].hex(' ') or 'nothing'}: download it again"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DataError(
            f"{path} must contain {math.prod(shape)} values, got {len(content) - header}: download it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return read_file(path, LARGE)
    content = bytearray()
    try:
        with gzip.open(path) as stream:
            # By pieces: a few bytes can unpack to more than the memory, and a read of n bytes allocates n at once.
            while len(content) <= LARGEST and (piece := stream.read(PIECE)):
                content += piece
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file ({error}): delete it and download it again") from None
    if len(content) > LARGEST:
        raise DataError(f"{path} must unpack to at most {LARGEST:,} bytes, got more: delete it and download it again")
    return bytes(content)
