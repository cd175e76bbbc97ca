"""Trees of image files: which images are there, whose they are, and their pixels."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedra.console import CountProgress
from fedra.data.decoding import Bytes
from fedra.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".pbm", ".tif", ".tiff", ".webp", ".gif")
SHOWN = 10
"""How many bad images an error lists by name."""
PORTION = 1024
"""Images whose decoding is asked for at once: it bounds what waits in memory."""
MOST_THREADS = 16


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


def under(root: Path, given: str) -> Path:
    """A file or folder by its whole path, or relative to the data root or the current folder."""
    path = Path(given).expanduser()
    here, there = path.absolute(), root / path
    if here.exists() and there.exists() and not here.samefile(there):
        raise DataError(
            f"'{given}' is both {there} (under the data root) and {here} (in the current folder): write the whole path"
        )
    return here if here.exists() else there


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


def read_images(
    sources: Sequence[Path] | Sequence[bytes],
    *,
    gray: bool = False,
    size: tuple[int, int] | None = None,
    square: bool = False,
) -> Tensor:
    """The pixels, uint8 (N, 1 or 3, height, width); `size` (height, width) resizes what is not that large.

    A source is a file, or a file's content. `square` takes the largest square about the middle first, so that nothing
    is stretched.
    """
    pixels, problems = usable_images(sources, gray=gray, size=size, square=square)
    if problems:
        listed = shortened([f"{name_of(sources, number)} ({why})" for number, why in problems.items()])
        raise DataError(f"{len(problems)} images cannot be used, repair or remove them: {listed}")
    return pixels


def usable_images(
    sources: Sequence[Path] | Sequence[bytes],
    *,
    gray: bool = False,
    size: tuple[int, int] | None = None,
    square: bool = False,
) -> tuple[Tensor, dict[int, str]]:
    """As `read_images`, but with what is wrong with each image that cannot be used; its pixels are black."""
    first = -1
    pixels: Bytes | None = None
    problems: dict[int, str] = {}
    for number, image in enumerate(_decoded(sources, gray, size, square)):
        if isinstance(image, _Unusable):
            problems[number] = str(image)
            continue
        if pixels is None:
            first, pixels = number, _room(len(sources), image)
        if image.shape != pixels.shape[1:]:
            raise DataError(
                f"the images differ in size ({name_of(sources, first)} is {_size(pixels[first])}, "
                f"{name_of(sources, number)} is {_size(image)}): set `size` to resize them all"
            )
        pixels[number] = image
    if pixels is None:
        listed = f", such as {name_of(sources, 0)} ({problems[0]})" if problems else ""
        raise DataError(f"there are no images to read{listed}: check the path")
    return torch.from_numpy(pixels), problems


def name_of(sources: Sequence[Path] | Sequence[bytes], number: int) -> str:
    """A source as an error names it: its path, or its number where it has none."""
    source = sources[number]
    return str(source) if isinstance(source, Path) else f"image {number}"


def shortened(names: Sequence[str]) -> str:
    """A list for a sentence: its first entries, and dots for the rest."""
    return "; ".join(names[:SHOWN]) + ("; ..." if len(names) > SHOWN else "")


def _decoded(
    sources: Sequence[Path] | Sequence[bytes], gray: bool, size: tuple[int, int] | None, square: bool
) -> Iterator[Bytes | _Unusable]:
    """Every image in its turn, decoded by several threads a portion ahead."""

    def read(source: Path | bytes) -> Bytes | _Unusable:
        try:
            return _read(source, gray, size, square)
        except _Unusable as problem:
            return problem

    with (
        ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as pool,
        CountProgress("decoding images", len(sources)) as bar,
    ):
        for start in range(0, len(sources), PORTION):
            some: Sequence[Path | bytes] = sources[start : start + PORTION]
            for image in pool.map(read, some):
                yield image
                bar.advance(1)


def _room(count: int, image: Bytes) -> Bytes:
    """An array for so many such images, refused where they would never fit into this machine's memory."""
    wanted = count * image.nbytes
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if wanted > there:
            raise DataError(
                f"{count} images of {_size(image)} take {wanted / 1e9:.1f} GB and this machine has {there / 1e9:.1f} "
                "GB of memory: set a smaller `size`, or take fewer of them"
            )
    return np.zeros((count, *image.shape), np.uint8)


def _size(image: Bytes) -> str:
    return f"{image.shape[1]} x {image.shape[2]}"


class _Unusable(Exception):
    """One image that cannot be used, and why."""


def _read(source: Path | bytes, gray: bool, size: tuple[int, int] | None, square: bool) -> Bytes:
    from PIL import Image

    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source)) as image:
            if image.mode[0] in "IF":
                # Pillow would clip such values at 255 without a word.
                raise _Unusable("it has more than 8 bits a pixel")
            converted = image.convert("L" if gray else "RGB")
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        where = f" {str(source)!r}" if isinstance(source, Path) else ""
        raise _Unusable(str(error).replace(where, "") if where else "it is no image file") from None
    if square and converted.width != converted.height:
        side = min(converted.size)
        left, top = (converted.width - side) // 2, (converted.height - side) // 2
        converted = converted.crop((left, top, left + side, top + side))
    if size is not None and converted.size != (size[1], size[0]):
        converted = converted.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    array: Bytes = np.asarray(converted)
    return array[None] if gray else array.transpose(2, 0, 1)
