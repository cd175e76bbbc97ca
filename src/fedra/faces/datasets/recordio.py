"""Read MXNet's RecordIO, the format of InsightFace's training sets (train.rec, train.idx, property), without MXNet.

A record is the magic number, a word with a 3-bit flag above a 29-bit length, the data, and zeros up to a multiple of
four bytes. Data that contain the magic number are split there, as the flag indicates (1 first, 2 middle, 3 last part);
the number itself is omitted and restored by the reader. Data start with flag, label, id and id2 (u32, f32, u64, u64);
if the flag is not zero, it is the number of labels (f32) that follow.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedra.errors import DataError

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


class RecordFile:
    """The records of a .rec file by the keys of its .idx file; records are read on access.

    Args:
        path: The .rec file, with its .idx file next to it.

    Example:
        >>> len(RecordFile("casia/train.rec"))
        501195
    """

    def __init__(self, path: Path | str) -> None:
        path = Path(path)
        self.path = path
        index = path.with_suffix(".idx")
        for file in (path, index):
            if not file.is_file():
                raise DataError(f"{file} does not exist: a record set is a .rec file with an .idx file next to it")
        if not path.stat().st_size:
            raise DataError(f"{path} is empty: download it again")
        self._offsets = _read_offsets(index)
        with path.open("rb") as stream:
            self._bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def keys(self) -> list[int]:
        """The keys of all records, in order."""
        return sorted(self._offsets)

    def __getitem__(self, key: int) -> Record:
        """Read the record with a key of the .idx file."""
        return self._record(key, self._data(key))

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
        flag, start, length = self._part(key, self._offset(key))
        if flag:
            return self[key].labels
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

    def _data(self, key: int) -> bytes:
        """Return the bytes of a record, its parts joined."""
        offset = self._offset(key)
        parts: list[bytes] = []
        while True:
            flag, start, length = self._part(key, offset)
            if flag not in ((0, 1) if not parts else (2, 3)):
                raise self._damaged(key, "its parts are out of order")
            parts.append(self._bytes[start : start + length])
            if flag in (0, 3):
                return struct.pack("<I", MAGIC).join(parts)
            offset = start + (length + 3) // 4 * 4

    def _offset(self, key: int) -> int:
        if key not in self._offsets:
            raise DataError(f"{self.path.with_suffix('.idx')} has no record {key}: download both files again")
        return self._offsets[key]

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


def _read_offsets(index: Path) -> dict[int, int]:
    """Read the offset of each record by key."""
    try:
        lines = [line.split() for line in index.read_text(encoding="ascii").splitlines() if line.strip()]
        offsets = {int(key): int(offset) for key, offset in lines}
    except ValueError:
        raise DataError(f"{index} must have a key and an offset on every line: download it again") from None
    if not offsets or min(offsets.values()) < 0 or len(offsets) != len(lines):
        raise DataError(f"{index} is empty or has a key twice: download it again")
    return offsets


@dataclass(frozen=True)
class RecordPeople:
    """Keys of the image records and the identity of each."""

    keys: tuple[int, ...]
    identities: tuple[int, ...]


def record_people(records: RecordFile, *, least: int = 1, most_identities: int | None = None) -> RecordPeople:
    """Return the images of the first `most_identities` identities with at least `least` images.

    Record 0 may give the range of the identity records, each of which gives the range of its images; without it, the
    labels of all records are read.
    """
    ranges = _ranges(records)
    if ranges is None:
        by_identity: dict[int, list[int]] = {}
        for key in records.keys:
            by_identity.setdefault(_identity(records, key), []).append(key)
        groups = [by_identity[identity] for identity in sorted(by_identity)]
    else:
        groups = [list(range(start, end)) for start, end in ranges]
    chosen = [group for group in groups if len(group) >= least][:most_identities]
    keys, identities = [], []
    for group in chosen:
        labels = {_identity(records, key) for key in (group if ranges else group[:1])}
        if len(labels) > 1:
            raise DataError(
                f"{records.path}: records {group[0]} to {group[-1]} must have one label, got {sorted(labels)[:5]}: "
                "download the .rec and .idx files again"
            )
        keys += group
        identities += [labels.pop()] * len(group)
    return RecordPeople(tuple(keys), tuple(identities))


def _ranges(records: RecordFile) -> list[tuple[int, int]] | None:
    """Return the range of image keys of each identity, or None if record 0 does not give it."""
    if 0 not in records.keys[:1] or not records[0].listed:
        return None
    last = records.keys[-1]
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


@dataclass(frozen=True)
class EncodedImages(Sequence[bytes]):
    """The encoded images of records, read on access."""

    records: RecordFile
    keys: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, which: int | slice) -> bytes | list[bytes]:  # type: ignore[override]
        if isinstance(which, slice):
            return [self.records[key].content for key in self.keys[which]]
        return self.records[self.keys[which]].content


def read_property(path: Path | str) -> tuple[int, int, int] | None:
    """Read identities, height and width from a property file; None if it does not exist."""
    path = Path(path)
    if not path.is_file():
        return None
    words = path.read_text(encoding="utf-8", errors="replace").strip().split(",")
    if len(words) != 3 or not all(word.strip().isdecimal() and len(word) < 19 for word in words):
        raise DataError(f"{path} must have one line 'identities,height,width': restore or remove it")
    identities, height, width = map(int, words)
    return identities, height, width
