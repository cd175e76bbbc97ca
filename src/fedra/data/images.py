"""Trees of image files: which images are there, whose they are, and their pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedra.data.decoding import Bytes
from fedra.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".pbm", ".tif", ".tiff", ".webp", ".gif")
SHOWN = 10
"""How many bad images an error lists by name."""


@dataclass(frozen=True)
class Listing:
    """The images under a folder, with the name of each one's class and group ("" without groups)."""

    paths: tuple[Path, ...]
    classes: tuple[str, ...]
    groups: tuple[str, ...]


def list_images(base: Path, *, groups: bool = False) -> Listing:
    """The images of base/class/image, or with `groups` of base/group/class/image, in the order of names."""
    found: list[tuple[Path, str, str]] = []
    for group in _folders(base) if groups else [base]:
        for folder in _folders(group):
            images = [file for file in sorted(folder.iterdir()) if _is_image(file)]
            if not images:
                raise DataError(f"the class folder {folder} holds no images: fill it or remove it")
            found += [(image, folder.name, group.name if groups else "") for image in images]
    paths, classes, owners = zip(*found, strict=True)
    return Listing(paths, classes, owners)


def indices(names: Sequence[str], known: Sequence[str]) -> Tensor:
    """Each name's place in `known`."""
    place = {name: number for number, name in enumerate(known)}
    return torch.tensor([place[name] for name in names], dtype=torch.int64)


def _folders(base: Path) -> list[Path]:
    if not base.is_dir():
        raise DataError(f"there is no folder {base}: check the path")
    folders = [entry for entry in sorted(base.iterdir()) if entry.is_dir() and entry.name[0] != "."]
    if not folders:
        raise DataError(f"the folder {base} has no folders in it: put each class's images into its own folder")
    return folders


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and file.name[0] != "." and file.is_file()


def read_images(paths: Sequence[Path], *, grey: bool = False, size: tuple[int, int] | None = None) -> Tensor:
    """The pixels, uint8 (N, 1 or 3, height, width); `size` (height, width) resizes what is not that large."""
    first: Path | None = None
    pixels: Bytes | None = None
    problems: list[str] = []
    for number, path in enumerate(paths):
        try:
            image = _read(path, grey, size)
        except _Unusable as error:
            problems.append(f"{path} ({error})")
            continue
        if first is None or pixels is None:
            first, pixels = path, np.empty((len(paths), *image.shape), np.uint8)
        if image.shape != pixels.shape[1:]:
            raise DataError(
                f"the images differ in size ({first} is {_size(pixels[0])}, {path} is {_size(image)}): "
                "set `size` to resize them all"
            )
        pixels[number] = image
    if problems:
        shown = "; ".join(problems[:SHOWN]) + ("; ..." if len(problems) > SHOWN else "")
        raise DataError(f"{len(problems)} images cannot be used, repair or remove them: {shown}")
    if pixels is None:
        raise DataError("there are no images to read: check the path")
    return torch.from_numpy(pixels)


def _size(image: Bytes) -> str:
    return f"{image.shape[1]} x {image.shape[2]}"


class _Unusable(Exception):
    """One image that cannot be used, and why."""


def _read(path: Path, grey: bool, size: tuple[int, int] | None) -> Bytes:
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.mode[0] in "IF":
                # Pillow would clip such values at 255 without a word.
                raise _Unusable("it has more than 8 bits a pixel")
            converted = image.convert("L" if grey else "RGB")
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise _Unusable(str(error).replace(f" {str(path)!r}", "")) from None
    if size is not None and converted.size != (size[1], size[0]):
        converted = converted.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    array: Bytes = np.asarray(converted)
    return array[None] if grey else array.transpose(2, 0, 1)
