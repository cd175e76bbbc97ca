"""Folders of image files: list them with class and group, and decode them."""

from __future__ import annotations

import io
import os
import stat
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
from fedra.machine import require_memory

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".pbm", ".tif", ".tiff", ".webp", ".gif")
SHOWN = 10
"""Maximum number of names that an error message lists."""
CHUNK = 1024
"""Images that are submitted for decoding at once; limits the number of decoded images in memory."""
MOST_THREADS = 16


@dataclass(frozen=True)
class Listing:
    """Images of a folder, with the class and group name of each ("" without groups)."""

    paths: tuple[Path, ...]
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    odd: tuple[str, ...] = ()
    """What has the name of an image and is not a file, each with the reason."""


def list_images(base: Path, *, groups: bool = False, skip_odd: bool = False) -> Listing:
    """List the images base/class/image, or base/group/class/image with `groups`, sorted by name.

    Folders, dangling links and devices with names of images raise an error, or are listed apart with `skip_odd`.
    """
    found: list[tuple[Path, str, str]] = []
    odd: list[str] = []
    for group in _folders(base) if groups else [base]:
        for folder in _folders(group):
            listed = [file for file in sorted(folder.iterdir()) if _is_image(file)]
            reasons = {file: reason for file in listed if (reason := describe_odd_file(file)) is not None}
            odd += [f"{file} ({reason})" for file, reason in reasons.items()]
            images = [file for file in listed if file not in reasons]
            if not images and not reasons:
                deeper = any(entry.is_dir() for entry in folder.iterdir())
                remedy = 'set `groups` for one more level (true, or "level" for faces)' if deeper else "remove it"
                raise DataError(f"the class folder {folder} must contain images, got none: add some, or {remedy}")
            found += [(image, folder.name, group.name if groups else "") for image in images]
    if odd and (not skip_odd or not found):
        raise DataError(f"{len(odd)} entries with names of images are not files, remove them: {shorten_list(odd)}")
    paths, classes, owners = zip(*found, strict=True)
    return Listing(paths, classes, owners, tuple(odd))


def under(root: Path, given: str) -> Path:
    """Resolve a path that is absolute, or relative to the data root or the current folder."""
    path = Path(given).expanduser()
    here, there = path.absolute(), root / path
    if here.exists() and there.exists() and not here.samefile(there):
        raise DataError(
            f"the path '{given}' must be unambiguous, got {there} (in the data root) and {here} (in the current "
            "folder): use the absolute path"
        )
    return here if here.exists() else there


def indices(names: Sequence[str], known: Sequence[str]) -> Tensor:
    """Return the index of each name in `known`."""
    index = {name: number for number, name in enumerate(known)}
    return torch.tensor([index[name] for name in names], dtype=torch.int64)


def _folders(base: Path) -> list[Path]:
    if not base.is_dir():
        raise DataError(
            f"the folder {base} does not exist: check the path, or set FEDRA_DATA to the folder of your data sets"
        )
    folders = [entry for entry in sorted(base.iterdir()) if entry.is_dir() and entry.name[0] != "."]
    if not folders:
        raise DataError(f"the folder {base} must contain one folder of images per class, got no folders")
    return folders


def _is_image(file: Path) -> bool:
    """Return whether a name is that of an image; what is not a file is found when it is to be read."""
    return file.suffix.lower() in SUFFIXES and file.name[0] != "."


def describe_odd_file(path: Path) -> str | None:
    """Return why a path is not a file that can be read, such as a dangling link; None if it is one."""
    try:
        mode = path.stat().st_mode
    except OSError as error:  # a loop of links, a folder that must not be read, or nothing at all
        dangling = isinstance(error, FileNotFoundError) and path.is_symlink()
        return "its link leads nowhere" if dangling else str(error.strerror)
    if stat.S_ISREG(mode):
        return None
    return "it is a folder" if stat.S_ISDIR(mode) else "it is a device or a pipe"


def read_images(
    sources: Sequence[Path] | Sequence[bytes],
    *,
    gray: bool = False,
    size: tuple[int, int] | None = None,
    square: bool = False,
) -> Tensor:
    """Decode images to uint8 (N, 1 or 3, height, width) and resize them to `size` (height, width).

    A source is a path or the content of a file. `square` first crops to the central square, to keep the aspect ratio.
    """
    pixels, problems = read_usable_images(sources, gray=gray, size=size, square=square)
    if problems:
        listed = shorten_list([f"{_source_name(sources, number)} ({why})" for number, why in problems.items()])
        raise DataError(f"{len(problems)} images cannot be used, repair or remove them: {listed}")
    return pixels


def read_usable_images(
    sources: Sequence[Path] | Sequence[bytes],
    *,
    gray: bool = False,
    size: tuple[int, int] | None = None,
    square: bool = False,
) -> tuple[Tensor, dict[int, str]]:
    """Decode images like `read_images`, but return the problem of each unreadable one, whose pixels are zero."""
    first = -1
    pixels: Bytes | None = None
    problems: dict[int, str] = {}
    for number, image in enumerate(_decode_all(sources, gray, size, square)):
        if isinstance(image, UnusableImage):
            problems[number] = str(image)
            continue
        if pixels is None:
            first, pixels = number, _allocate(len(sources), image)
        if image.shape != pixels.shape[1:]:
            raise DataError(
                f"images must have the same size, got {_source_name(sources, first)} with {_size(pixels[first])} and "
                f"{_source_name(sources, number)} with {_size(image)}: set `size` to resize them"
            )
        pixels[number] = image
    if pixels is None:
        listed = f" of {len(sources)}, such as {_source_name(sources, 0)} ({problems[0]})" if problems else ""
        raise DataError(f"at least one image must be readable, got none{listed}: check the path")
    return torch.from_numpy(pixels), problems


def find_unusable_images(sources: Sequence[Path] | Sequence[bytes], *, size: tuple[int, int]) -> dict[int, str]:
    """Decode images and return the problem of each unreadable one; no pixels are kept."""
    images = enumerate(_decode_all(sources, False, size, True))
    return {number: str(image) for number, image in images if isinstance(image, UnusableImage)}


def _source_name(sources: Sequence[Path] | Sequence[bytes], number: int) -> str:
    """Return the path of a source, or its number if it has no path."""
    source = sources[number]
    return str(source) if isinstance(source, Path) else f"image {number}"


def shorten_list(names: Sequence[str]) -> str:
    """Join the first names for an error message, with dots for the rest."""
    return "; ".join(names[:SHOWN]) + ("; ..." if len(names) > SHOWN else "")


def _decode_all(
    sources: Sequence[Path] | Sequence[bytes], gray: bool, size: tuple[int, int] | None, square: bool
) -> Iterator[Bytes | UnusableImage]:
    """Yield the images in order, decoded by several threads one chunk ahead."""

    def read(source: Path | bytes) -> Bytes | UnusableImage:
        try:
            return decode_image(source, gray, size, square)
        except UnusableImage as problem:
            return problem

    with (
        ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as pool,
        CountProgress("decoding images", len(sources)) as bar,
    ):
        for start in range(0, len(sources), CHUNK):
            some: Sequence[Path | bytes] = sources[start : start + CHUNK]
            for image in pool.map(read, some):
                yield image
                bar.advance(1)


def _allocate(count: int, image: Bytes) -> Bytes:
    """Allocate an array for `count` images, or raise if it does not fit into memory."""
    what = f"{count} images of {_size(image)}"
    require_memory(what, count * image.nbytes, "set a smaller `size`, or use fewer images")
    return np.zeros((count, *image.shape), np.uint8)


def _size(image: Bytes) -> str:
    return f"{image.shape[1]} x {image.shape[2]}"


class UnusableImage(Exception):
    """An image cannot be read, with the reason."""


def decode_image(source: Path | bytes, gray: bool, size: tuple[int, int] | None, square: bool) -> Bytes:
    """Decode one image to (1 or 3, height, width), or raise `UnusableImage`."""
    from PIL import Image

    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source)) as image:
            if image.mode[0] in "IF":
                # Pillow silently clips such values at 255.
                raise UnusableImage("it has more than 8 bits per pixel")
            converted = image.convert("L" if gray else "RGB")
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        where = f" {str(source)!r}" if isinstance(source, Path) else ""
        raise UnusableImage(str(error).replace(where, "") if where else "it is not an image file") from None
    if square and converted.width != converted.height:
        side = min(converted.size)
        left, top = (converted.width - side) // 2, (converted.height - side) // 2
        converted = converted.crop((left, top, left + side, top + side))
    if size is not None and converted.size != (size[1], size[0]):
        converted = converted.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    array: Bytes = np.asarray(converted)
    return array[None] if gray else array.transpose(2, 0, 1)
