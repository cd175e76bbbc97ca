"""Images that stay in their files: every batch is decoded when it is needed, by the process that trains on it.

A source is a list of files, or of parts of one, with the side to decode to. It is pickled as names and numbers, so
workers open the files themselves; on other machines the files must have the same paths.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedra.data.images import UnusableImage, decode_image
from fedra.errors import DataError
from fedra.machine import physical_memory

STREAMED = "streamed"
"""Key of a data set's note that its images are read from their files, because they would not fit into memory."""

SHARE = 0.5
"""Share of this machine's memory that decoded images may take before they are streamed by default."""

Contents = AbstractContextManager[Callable[[int], bytes]]
"""Open files, as a function that returns the encoded image of a row."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageSource(ABC):
    """Encoded color images, decoded to uint8 (3, size, width) as `read_images` does.

    The central square is resized to `size`; `width` cuts out the middle columns, by default all.
    """

    size: int
    width: int | None = None

    def __len__(self) -> int:
        return self.count()

    @property
    def shape(self) -> tuple[int, ...]:
        return (3, self.size, self.width or self.size)

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    @abstractmethod
    def count(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def open(self) -> Contents:
        """Open the files, in whichever process reads them."""

    @abstractmethod
    def name(self, row: int) -> str:
        """Return what error messages call an image."""

    def read(self, rows: Tensor, threads: int) -> Tensor:
        """Decode the images of these rows by this many threads."""
        needed, memory = len(rows) * int(np.prod(self.shape)), physical_memory()
        if memory is not None and needed > memory:
            raise DataError(
                f"images that are read at once must fit into memory ({memory / 1e9:.1f} GB), got {len(rows)}, which "
                f"take {needed / 1e9:.1f} GB: set a smaller `size`, or use fewer images"
            )
        pixels = np.empty((len(rows), *self.shape), np.uint8)
        left = (self.size - self.shape[2]) // 2

        def fill(index: int, row: int) -> None:
            try:
                image = decode_image(content(row), False, (self.size, self.size), True)
                pixels[index] = image[..., left : left + self.shape[2]]
            except UnusableImage as problem:
                raise DataError(f"{self.name(row)} cannot be decoded ({problem}): repair or remove it") from None

        try:
            with self.open() as content:
                if threads == 1:
                    for index, row in enumerate(rows.tolist()):
                        fill(index, row)
                else:
                    with ThreadPoolExecutor(threads) as pool:
                        list(pool.map(fill, range(len(rows)), rows.tolist()))
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise DataError(
                f"streamed images must stay where they are, on every machine that trains, but {socket.gethostname()} "
                f"cannot read one ({reason}): restore the files, or mount them at the same path"
            ) from error
        return torch.from_numpy(pixels)


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageFiles(ImageSource):
    """One file per image. Millions of names are kept as one tensor, because strings take several times as much."""

    names: Tensor
    ends: Tensor

    @classmethod
    def of(cls, paths: Iterable[Path], size: int) -> ImageFiles:
        """Store absolute paths, because workers may have another current folder."""
        names = [os.fsencode(os.path.abspath(path)) for path in paths]
        joined, ends = join_bytes(names)
        return cls(size=size, names=joined, ends=ends)

    def count(self) -> int:
        return len(self.ends)

    def open(self) -> Contents:
        return nullcontext(lambda row: self._path(row).read_bytes())

    def name(self, row: int) -> str:
        return str(self._path(row))

    def _path(self, row: int) -> Path:
        return Path(os.fsdecode(bytes_of(self.names, self.ends, row)))


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedImages(ImageSource):
    """Encoded images one after the other in one tensor, usually memory-mapped; `label` names them in messages."""

    label: str
    encoded: Tensor
    ends: Tensor

    def count(self) -> int:
        return len(self.ends)

    def open(self) -> Contents:
        return nullcontext(lambda row: bytes_of(self.encoded, self.ends, row))

    def name(self, row: int) -> str:
        return f"{self.label}: image {row}"


def join_bytes(pieces: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """Concatenate byte strings to one uint8 tensor; also return the end of each, int64."""
    joined = np.frombuffer(bytearray(b"".join(pieces)), np.uint8)
    return torch.from_numpy(joined), torch.from_numpy(np.cumsum([len(piece) for piece in pieces], dtype=np.int64))


def bytes_of(joined: Tensor, ends: Tensor, row: int) -> bytes:
    """Return one of the byte strings that `join_bytes` concatenated."""
    start = int(ends[row - 1]) if row else 0
    return joined[start : int(ends[row])].numpy().tobytes()


def choose_stream(stream: bool | None, count: int, size: int) -> tuple[bool, dict[str, str]]:
    """Decide whether to stream `count` images, and return the note that explains an automatic choice."""
    needed, memory = count * 3 * size * size, physical_memory()
    if stream is not None or memory is None or needed <= SHARE * memory:
        return bool(stream), {}
    return True, {
        STREAMED: f"{count:,} images of {size} x {size} take {needed / 1e9:.1f} GB decoded, more than half of this "
        f"machine's memory ({memory / 1e9:.1f} GB), so they are decoded batch by batch from their files (data.stream)"
    }
