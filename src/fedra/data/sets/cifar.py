"""CIFAR-10 and CIFAR-100: the binary and the Python version, unpacked or as archives.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedra.data.cache import cached
from fedra.data.dataset import Dataset, Split
from fedra.data.decoding import Bytes, as_split
from fedra.data.download import RemoteFile, locate
from fedra.data.loading import DATASETS
from fedra.data.sets.cifar_names import CIFAR10_CLASSES, COARSE_CLASSES, FINE_CLASSES
from fedra.data.sets.pickled import read_batch
from fedra.data.unpacking import DAMAGED
from fedra.errors import DataError
from fedra.file_reading import LARGE, read_file

PIXELS = 3 * 32 * 32
SITE = "https://www.cs.toronto.edu/~kriz/"
AUGMENT = ("crop", "flip", "cutout")
Decoder = Callable[[bytes, Path], tuple[Bytes, Bytes]]
"""A function from a file's content and path to labels (N, label types) and pixels (N, 3072)."""


@dataclass(frozen=True)
class Version:
    """A distributed version of a CIFAR data set."""

    folder: str
    archive: RemoteFile
    train: tuple[str, ...]
    test: tuple[str, ...]
    decode: Decoder


def _binary(kinds: int) -> Decoder:
    def decode(content: bytes, path: Path) -> tuple[Bytes, Bytes]:
        record = kinds + PIXELS
        if not content or len(content) % record:
            raise DataError(
                f"{path} must have a multiple of {record} bytes (the record size), got {len(content)}: replace it"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, record)
        return records[:, :kinds], records[:, kinds:]

    return decode


def _pickled(*keys: bytes) -> Decoder:
    def decode(content: bytes, path: Path) -> tuple[Bytes, Bytes]:
        batch = read_batch(content, path)
        for key in (b"data", *keys):
            if key not in batch:
                raise DataError(
                    f"{path} must have an entry '{key.decode()}', got none: it is from another CIFAR data set"
                )
        pixels = batch[b"data"]
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
            raise DataError(f"{path} must contain rows of {PIXELS} bytes under 'data': download it again")
        try:
            labels = np.array([batch[key] for key in keys], dtype=np.uint8).T
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(f"{path} must contain labels from 0 to 255 ({error}): download it again") from None
        return labels, pixels

    return decode


CIFAR10 = (
    Version(
        "cifar-10-batches-bin",
        RemoteFile(
            "cifar-10-binary.tar.gz",
            (SITE + "cifar-10-binary.tar.gz",),
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            size=170052171,
        ),
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        ("test_batch.bin",),
        _binary(1),
    ),
    Version(
        "cifar-10-batches-py",
        RemoteFile(
            "cifar-10-python.tar.gz",
            (SITE + "cifar-10-python.tar.gz",),
            md5="c58f30108f718f92721af3b95e74349a",
        ),
        tuple(f"data_batch_{number}" for number in range(1, 6)),
        ("test_batch",),
        _pickled(b"labels"),
    ),
)
CIFAR100 = (
    Version(
        "cifar-100-binary",
        RemoteFile(
            "cifar-100-binary.tar.gz",
            (SITE + "cifar-100-binary.tar.gz",),
            md5="03b5dce01913d631647c71ecec9e9cb8",
            size=168513733,
        ),
        ("train.bin",),
        ("test.bin",),
        _binary(2),
    ),
    Version(
        "cifar-100-python",
        RemoteFile(
            "cifar-100-python.tar.gz",
            (SITE + "cifar-100-python.tar.gz",),
            md5="eb9058c3a382ffc7106e4002c42a8d85",
        ),
        ("train",),
        ("test",),
        _pickled(b"coarse_labels", b"fine_labels"),
    ),
)


@DATASETS.add("cifar10")
def cifar10(root: Path) -> Dataset:
    """50,000 + 10,000 color images of 32 x 32 pixels in 10 classes."""
    train, test = _load(root, "cifar10", CIFAR10, kind=0, classes=10)
    return Dataset(
        "cifar10",
        train,
        test,
        CIFAR10_CLASSES,
        mean=(0.49139968, 0.48215827, 0.44653124),
        std=(0.24703233, 0.24348505, 0.26158768),
        augment=AUGMENT,
    )


@DATASETS.add("cifar100")
def cifar100(root: Path, *, labels: Literal["fine", "coarse"] = "fine") -> Dataset:
    """50,000 + 10,000 color images of 32 x 32 pixels in 100 classes (`fine`) or 20 superclasses (`coarse`)."""
    names = FINE_CLASSES if labels == "fine" else COARSE_CLASSES
    train, test = _load(root, "cifar100", CIFAR100, kind=("coarse", "fine").index(labels), classes=len(names))
    return Dataset(
        "cifar100",
        train,
        test,
        names,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        augment=AUGMENT,
    )


def _load(root: Path, name: str, versions: tuple[Version, ...], kind: int, classes: int) -> tuple[Split, Split]:
    version, source = _find(root, versions)
    files = [source] if source.is_file() else [source / file for file in (*version.train, *version.test)]
    for file in files:
        if not file.is_file():
            raise DataError(f"the file {file} does not exist: put all files of {version.archive.name} into {source}")

    def decode() -> dict[str, torch.Tensor]:
        contents = _members(source, version) if source.is_file() else {f.name: read_file(f, LARGE) for f in files}
        stored: dict[str, torch.Tensor] = {}
        for part, members in (("train", version.train), ("test", version.test)):
            decoded = [version.decode(contents.pop(member), source / member) for member in members]
            stored[f"{part}_labels"] = torch.from_numpy(np.concatenate([labels for labels, _ in decoded]))
            pixels = np.concatenate([pixels for _, pixels in decoded])
            stored[f"{part}_inputs"] = torch.from_numpy(pixels.reshape(-1, 3, 32, 32))
        return stored

    stored = cached(root, name, files, decode)
    return _split(stored, "train", kind, classes, source), _split(stored, "test", kind, classes, source)


def _find(root: Path, versions: tuple[Version, ...]) -> tuple[Version, Path]:
    """Find a version on disk, unpacked before archived and binary before Python, or download the binary one."""
    for version in versions:
        if (root / version.folder).is_dir():
            return version, root / version.folder
    for version in versions:
        if (root / version.archive.name).is_file():
            return version, root / version.archive.name
    return versions[0], locate(versions[0].archive, (root,))


def _members(archive: Path, version: Version) -> dict[str, bytes]:
    """Read the contents of the needed files by name, without unpacking the archive to disk."""
    members = {f"{version.folder}/{name}": name for name in (*version.train, *version.test)}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r|*") as stream:
            for member in stream:
                file = stream.extractfile(member) if member.name in members else None
                if file is not None:
                    contents[members[member.name]] = file.read()
    except DAMAGED as error:
        raise DataError(f"{archive} is damaged ({error}): delete it and download it again") from None
    for path, name in members.items():
        if name not in contents:
            raise DataError(f"{archive} must contain {path}, got no such file: delete it and download it again")
    return contents


def _split(stored: dict[str, torch.Tensor], part: str, kind: int, classes: int, source: Path) -> Split:
    labels = stored[f"{part}_labels"]
    if classes == len(COARSE_CLASSES):
        _check_coarse(labels, source)
    return as_split(stored[f"{part}_inputs"].numpy(), labels[:, kind].numpy(), classes, source)


def _check_coarse(labels: torch.Tensor, source: Path) -> None:
    """Check that a superclass has five classes, because reduced copies of CIFAR-100 often omit coarse labels."""
    pairs = torch.unique(labels, dim=0)
    if torch.bincount(pairs[:, 0]).max() > 5:
        raise DataError(
            f"{source} must contain valid coarse labels: use labels = 'fine', or download the official files"
        )
