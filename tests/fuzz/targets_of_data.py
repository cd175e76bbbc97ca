"""Targets: data sets in the formats of their authors, users' arrays, archives and images."""

from __future__ import annotations

import gzip
import io
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from fuzz_formats import BYTES, GZIP, MATLAB, TAR, ZIP, Format
from fuzz_target import Target
from PIL import Image

from fedra.data.image_sizes import image_sizes
from fedra.data.images import read_images
from fedra.data.sets import cifar, medmnist, mnist, svhn
from fedra.data.sets.npz import npz
from fedra.data.unpacking import unpack_tar
from fedra.faces.photos.photo_files import read_photo_file

PIXELS = 3 * 32 * 32


def _idx(*shape: int) -> bytes:
    sizes = struct.pack(f">{len(shape)}I", *shape)
    return bytes((0, 0, 8, len(shape))) + sizes + bytes(number % 10 for number in range(int(np.prod(shape))))


@cache
def digits() -> Mapping[str, bytes]:
    """Two images of MNIST and their labels, as they are and compressed."""
    found = {"images": _idx(2, 28, 28), "labels": _idx(2)}
    return found | {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in found.items()}


def read_digits(end: str) -> Callable[[Path], object]:
    """A reader of images and labels whose names end so."""
    return lambda folder: mnist._split(folder / f"images{end}", folder / f"labels{end}")


@cache
def pictures() -> Mapping[str, bytes]:
    """CIFAR's two formats, and an archive of the second."""
    pixels = np.arange(2 * PIXELS, dtype=np.uint64).astype(np.uint8).reshape(2, PIXELS)
    batch = pickle.dumps({b"data": pixels, b"labels": [3, 4]}, protocol=2)
    version = cifar.CIFAR10[1]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in (*version.train, *version.test):
            member = tarfile.TarInfo(f"{version.folder}/{name}")
            member.size = len(batch)
            archive.addfile(member, io.BytesIO(batch))
    return {"binary": bytes((3, *pixels[0], 4, *pixels[1])), "pickled": batch, "archive": packed.getvalue()}


def _decode(version: int, file: str) -> Callable[[Path], object]:
    return lambda folder: cifar.CIFAR10[version].decode((folder / file).read_bytes(), folder / file)


def read_archive(folder: Path) -> None:
    """Decode all members, as the loader does without unpacking."""
    version = cifar.CIFAR10[1]
    for content in cifar._members(folder / "archive", version).values():
        version.decode(content, folder / "archive")


def unpack(folder: Path) -> None:
    """Unpack into a folder whose outside is watched."""
    shutil.rmtree(folder / "inside", ignore_errors=True)
    (folder / "inside").mkdir()
    before = sorted(path.name for path in folder.iterdir())
    try:
        unpack_tar(folder / "archive", folder / "inside", limit=2**20)
    finally:
        assert sorted(path.name for path in folder.iterdir()) == before
        assert not any(path.is_symlink() for path in (folder / "inside").rglob("*"))


@cache
def house_numbers() -> Mapping[str, bytes]:
    """Two images of SVHN, compressed as the authors have them."""
    packed = io.BytesIO()
    images = np.arange(2 * PIXELS, dtype=np.uint64).astype(np.uint8).reshape(32, 32, 3, 2)
    scipy.io.savemat(packed, {"X": images, "y": np.array([[10], [3]], dtype=np.uint8)}, do_compression=True)
    return {"train.mat": packed.getvalue()}


def plain_house_numbers() -> list[bytes]:
    """The same without compression."""
    packed = io.BytesIO()
    scipy.io.savemat(packed, {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": np.array([[1.0]])})
    return [packed.getvalue()]


def _npz(**arrays: Any) -> bytes:
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    return packed.getvalue()


@cache
def arrays() -> Mapping[str, bytes]:
    """A user's arrays, with owners and names of classes."""
    images = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4)
    labels = np.array([0, 1, 0, 1, 0, 1])
    names = np.array(["cat", "dog"])
    return {
        "mine.npz": _npz(x_train=images, y_train=labels, x_test=images, y_test=labels, groups=labels, classes=names)
    }


def other_arrays() -> list[bytes]:
    """Vectors with labels in words, and without test examples."""
    return [_npz(x=np.eye(6, dtype=np.float32), y=np.array(["b", "a", "b", "a", "b", "a"]))]


def read_arrays(folder: Path) -> None:
    npz(folder, path=str(folder / "mine.npz"))


@cache
def medical() -> Mapping[str, bytes]:
    """A set of MedMNIST's form."""
    images, labels = np.zeros((2, 28, 28), np.uint8), np.array([[0], [1]], np.uint8)
    parts = {f"{part}_images": images for part in ("train", "val", "test")}
    return {"medical.npz": _npz(**parts, **{name.replace("images", "labels"): labels for name in parts})}


def photo(kind: str, mode: str = "RGB", size: tuple[int, int] = (12, 10)) -> bytes:
    """A small picture in a format of Pillow's."""
    packed = io.BytesIO()
    values = np.arange(size[0] * size[1] * 3, dtype=np.uint64).astype(np.uint8).reshape(size[1], size[0], 3)
    image = Image.fromarray(values)
    image = image.convert("L").convert("I").convert(mode) if mode == "I;16" else image.convert(mode)
    image.save(packed, kind)
    return packed.getvalue()


def photos() -> list[bytes]:
    """The other formats and kinds of pixels."""
    kinds = [
        ("PNG", "RGBA"),
        ("PNG", "I;16"),
        ("PNG", "P"),
        ("JPEG", "L"),
        ("GIF", "P"),
        ("BMP", "RGB"),
        ("WEBP", "RGB"),
    ]
    return [photo(kind, mode) for kind, mode in [*kinds, ("TIFF", "RGB"), ("TIFF", "F"), ("PPM", "RGB")]]


def read_photo(folder: Path) -> None:
    read_photo_file(folder / "photo")


def read_example(folder: Path) -> None:
    """An image of a data set, by path and by its bytes."""
    path = folder / "photo"
    image_sizes([path])
    read_images([path], size=(8, 8), square=True)
    read_images([path.read_bytes()])


def targets() -> list[Target]:
    """The targets of this file."""
    rows: Sequence[tuple[str, str, Format, Callable[[], Mapping[str, bytes]], Callable[[Path], object]]] = [
        ("idx-images", "images", BYTES, digits, read_digits("")),
        ("idx-labels", "labels", BYTES, digits, read_digits("")),
        ("idx-gzip", "images.gz", GZIP, digits, read_digits(".gz")),
        ("cifar-binary", "binary", BYTES, pictures, _decode(0, "binary")),
        ("cifar-pickled", "pickled", BYTES, pictures, _decode(1, "pickled")),
        ("cifar-archive", "archive", TAR, pictures, read_archive),
        ("tar", "archive", TAR, pictures, unpack),
        ("medmnist", "medical.npz", ZIP, medical, lambda folder: medmnist._decode(folder / "medical.npz", 2)),
    ]
    found = [Target(name, file, form, files, read) for name, file, form, files, read in rows]
    jpeg = cache(lambda: {"photo": photo("JPEG")})
    return [
        *found,
        Target("svhn", "train.mat", MATLAB, house_numbers, lambda f: svhn._read(f / "train.mat"), plain_house_numbers),
        Target("npz", "mine.npz", ZIP, arrays, read_arrays, other_arrays),
        Target("photo", "photo", BYTES, jpeg, read_photo, photos),
        Target("image", "photo", BYTES, jpeg, read_example, photos),
    ]
