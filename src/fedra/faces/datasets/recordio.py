"""Read MXNet's RecordIO, the format of InsightFace's training sets (train.rec, train.idx, property), without MXNet.

A record is the magic number, a word with a 3-bit flag above a 29-bit length, the data, and zeros up to a multiple of
four bytes. Data that contain the magic number are split there, as the flag indicates (1 first, 2 middle, 3 last part);
the number itself is omitted and restored by the reader. Data start with flag, label, id and id2 (u32, f32, u64, u64);
if the flag is not zero, it is the number of labels (f32) that follow.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedra.console import CountProgress
from fedra.data.streaming import ImageSource
from fedra.errors import DataError
from fedra.file_reading import SMALL, read_file

MAGIC = 0xCED7230A
_WORDS = struct.Struct("<II")
_HEADER = struct.Struct("<IfQQ")


@dataclass(frozen=True)
class Record:
    """One record of a .rec file.

    Attributes:
        labels: The labels.
        listed: Whether the labels are a list; in record 0 this means that they are ranges of other records.
        content: The bytes after the labels, usually an encoded image.

    Example:
        >>> RecordFile("casia/train.rec")[1].labels
        (0.0,)
    """

    labels: tuple[float, ...]
    listed: bool
    content: bytes


class RecordBytes:
    """The content of a .rec file, memory-mapped: records by offset. `key` names a record in error messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as stream:
            self._bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()

    def record(self, key: int, offset: int) -> Record:
        """Read the record at an offset."""
        return self._record(key, self._data(key, offset))

    def labels(self, key: int, offset: int) -> tuple[float, ...]:
        """Read the labels of the record at an offset."""
        flag, start, length = self._part(key, offset)
        if flag:
            return self.record(key, offset).labels
        count = struct.unpack_from("<I", self._bytes, start)[0] if length >= _HEADER.size else 0
        return self._record(key, self._bytes[start : start + min(length, _HEADER.size + 4 * count)]).labels

    def _record(self, key: int, data: bytes) -> Record:
        if len(data) < _HEADER.size:
            raise self._damaged(key, "it is too short")
        count, label, _, _ = _HEADER.unpack_from(data)
        if not count:
            return Record((label,), False, data[_HEADER.size :])
        end = _HEADER.size + 4 * count
        if len(data) < end:
            raise self._damaged(key, f"it declares {count} labels and is shorter")
        return Record(struct.unpack_from(f"<{count}f", data, _HEADER.size), True, data[end:])

    def _data(self, key: int, offset: int) -> bytes:
        """Return the bytes of a record, its parts joined."""
        parts: list[bytes] = []
        while True:
            flag, start, length = self._part(key, offset)
            if flag not in ((0, 1) if not parts else (2, 3)):
                raise self._damaged(key, "its parts are out of order")
            parts.append(self._bytes[start : start + length])
            if flag in (0, 3):
                return struct.pack("<I", MAGIC).join(parts)
            offset = start + (length + 3) // 4 * 4

    def _part(self, key: int, offset: int) -> tuple[int, int, int]:
        """Return the flag, the start and the length of the part at an offset."""
        if offset + _WORDS.size > len(self._bytes):
            raise self._damaged(key, "the file ends before it")
        magic, word = _WORDS.unpack_from(self._bytes, offset)
        start, length = offset + _WORDS.size, word & (1 << 29) - 1
        if magic != MAGIC or start + length > len(self._bytes):
            raise self._damaged(key, "there is no complete record at its offset")
        return word >> 29, start, length

    def _damaged(self, key: int, reason: str) -> DataError:
        return DataError(f"{self.path}, record {key}: {reason}: download the .rec and .idx files again")


class RecordFile:
    """The records of a .rec file by the keys of its .idx file; records are read on access.

    Args:
        path: The .rec file, with its .idx file next to it.

    Example:
        >>> len(RecordFile("casia/train.rec"))
        501195
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        check_record_files(self.path)
        self._keys, self._offsets = _read_offsets(self.path.with_suffix(".idx"))
        self._bytes = RecordBytes(self.path)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> list[int]:
        """The keys of all records, in order."""
        found: list[int] = self._keys.tolist()
        return found

    def __getitem__(self, key: int) -> Record:
        """Read the record with a key of the .idx file."""
        return self._bytes.record(key, self.offset(key))

    def labels(self, key: int) -> tuple[float, ...]:
        """Read the labels of a record without its image.

        Args:
            key: A key of the .idx file.

        Returns:
            The labels.

        Example:
            >>> RecordFile("casia/train.rec").labels(1)
            (0.0,)
        """
        return self._bytes.labels(key, self.offset(key))

    def offset(self, key: int) -> int:
        """Return the position of a record in the .rec file.

        Args:
            key: A key of the .idx file.

        Returns:
            The offset in bytes.

        Example:
            >>> RecordFile("casia/train.rec").offset(0)
            0
        """
        place = int(np.searchsorted(self._keys, key))
        if place == len(self._keys) or self._keys[place] != key:
            raise DataError(f"{self.path.with_suffix('.idx')} has no record {key}: download both files again")
        return int(self._offsets[place])


def check_record_files(path: Path) -> None:
    """Raise if a .rec file or its .idx file does not exist, or is empty."""
    for file in (path, path.with_suffix(".idx")):
        if not file.is_file():
            raise DataError(f"{file} does not exist: a record set is a .rec file with an .idx file next to it")
        if not file.stat().st_size:
            raise DataError(f"{file} is empty: download it again")


def _read_offsets(index: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the keys, in order, and the offset of each; as arrays, because a large set has millions."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*no data.*")
            keys, offsets = np.loadtxt(index, np.int64, comments=None, ndmin=2, encoding="ascii").T
    except (ValueError, OverflowError):  # not numbers, or not two of them on every line
        raise DataError(f"{index} must have a key and an offset on every line: download it again") from None
    order = np.argsort(keys)
    if offsets.min() < 0 or bool((np.diff(keys[order]) == 0).any()):
        raise DataError(f"{index} has a key twice or a negative offset: download it again")
    return keys[order], offsets[order]


@dataclass(frozen=True)
class RecordPeople:
    """Keys of the image records, and the offset and the identity of each, as int64 tensors."""

    keys: Tensor
    offsets: Tensor
    identities: Tensor


def record_people(records: RecordFile, *, least: int = 1, most_identities: int | None = None) -> RecordPeople:
    """Return the images of the first `most_identities` identities with at least `least` images.

    Record 0 may give the range of the identity records, each of which gives the range of its images; without it, the
    labels of all records are read.
    """
    ranges = _ranges(records)
    if ranges is None:
        every = np.array(records.keys)
        labels = np.array(_identities(records, every.tolist()))
        ends = np.unique(labels, return_counts=True)[1].cumsum()
        groups = np.split(every[np.argsort(labels, kind="stable")], ends[:-1])
    else:
        groups = [np.arange(start, end) for start, end in ranges]
    chosen = [group for group in groups if len(group) >= least][:most_identities]
    keys = np.concatenate([np.empty(0, np.int64), *chosen])
    identities = np.array(_identities(records, keys.tolist()), np.int64)
    for group, labels in zip(chosen, np.split(identities, np.cumsum([len(group) for group in chosen])), strict=False):
        if len(found := np.unique(labels)) > 1:
            raise DataError(
                f"{records.path}: records {group[0]} to {group[-1]} must have one label, got {found[:5].tolist()}: "
                "download the .rec and .idx files again"
            )
    offsets = np.array([records.offset(key) for key in keys.tolist()], np.int64)
    return RecordPeople(*map(torch.from_numpy, (keys, offsets, identities)))


def _identities(records: RecordFile, keys: Sequence[int]) -> list[int]:
    """Read the identity of each record."""
    found = []
    with CountProgress("reading the labels of records", len(keys)) as bar:
        for key in keys:
            found.append(_identity(records, key))
            bar.advance(1)
    return found


def _ranges(records: RecordFile) -> list[tuple[int, int]] | None:
    """Return the range of image keys of each identity, or None if record 0 does not give it."""
    keys = records.keys
    if 0 not in keys[:1] or not records[0].listed:
        return None
    last = keys[-1]
    start, end = _range(records, 0, last)
    return [_range(records, key, last) for key in range(start, end)]


def _range(records: RecordFile, key: int, last: int) -> tuple[int, int]:
    """Return the range of keys in a record; check its end, because a damaged one could ask for billions of keys."""
    labels = records.labels(key)
    if len(labels) < 2 or not 0 < labels[0] <= labels[1] <= last + 1 or any(label % 1 for label in labels[:2]):
        raise DataError(
            f"{records.path}, record {key}: its labels must be a range, got {labels}: download the files again"
        )
    return int(labels[0]), int(labels[1])


def _identity(records: RecordFile, key: int) -> int:
    label = records.labels(key)[0]
    if label < 0 or label % 1:
        raise DataError(
            f"{records.path}, record {key}: its label must be an identity, got {label}: download the files again"
        )
    return int(label)


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordImages(ImageSource):
    """The encoded images of records; each process opens the .rec file itself."""

    path: str
    length: int
    keys: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, path: Path, people: RecordPeople, size: int) -> RecordImages:
        """The images of these people."""
        where, length = os.path.abspath(path), path.stat().st_size
        return cls(size=size, path=where, length=length, keys=people.keys, offsets=people.offsets)

    def count(self) -> int:
        return len(self.keys)

    @contextmanager
    def open(self) -> Iterator[Callable[[int], bytes]]:
        if (length := Path(self.path).stat().st_size) != self.length:
            raise DataError(
                f"{self.path} must have {self.length} bytes, as when its records were listed, got {length} on "
                f"{socket.gethostname()}: do not change it during a run, and copy the same file to all machines"
            )
        with closing(RecordBytes(Path(self.path))) as records:
            yield lambda row: records.record(int(self.keys[row]), int(self.offsets[row])).content

    def name(self, row: int) -> str:
        return f"{self.path}: record {int(self.keys[row])}"


@dataclass(frozen=True)
class EncodedImages(Sequence[bytes]):
    """The encoded images of records as a sequence, read on access."""

    content: Callable[[int], bytes]
    total: int

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, which: int | slice) -> bytes | list[bytes]:  # type: ignore[override]
        rows = range(self.total)[which]
        return self.content(rows) if isinstance(rows, int) else [self.content(row) for row in rows]


def read_property(path: Path | str) -> tuple[int, int, int] | None:
    """Read identities, height and width from a property file; None if it does not exist."""
    path = Path(path)
    if not path.is_file():
        return None
    words = read_file(path, SMALL).decode("utf-8", errors="replace").strip().split(",")
    if len(words) != 3 or not all(word.strip().isdecimal() and len(word) < 19 for word in words):
        raise DataError(f"{path} must have one line 'identities,height,width': restore or remove it")
    identities, height, width = map(int, words)
    return identities, height, width
