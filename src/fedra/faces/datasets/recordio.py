"""MXNet's RecordIO, in which InsightFace's training sets come: train.rec, train.idx and property, read without MXNet.

A record is the magic number, a word with a 3-bit flag above a 29-bit length, the data, and zeros up to a multiple of
four bytes. Data that contain the magic number are cut there, which the flag tells (1 first, 2 middle, 3 last part); the
number itself is left out and put back by the reader. Data begin with flag, label, id and id2 (u32, f32, u64, u64) and,
where the flag is not zero, so many labels (f32).
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
    """One record: its labels (one, or a list) and what follows them."""

    labels: tuple[float, ...]
    listed: bool
    """Whether the labels came as a list, which in the first record means: these are ranges of other records."""
    content: bytes


class RecordFile:
    """The records of a .rec file by the keys of its .idx file; nothing is read before it is asked for."""

    def __init__(self, path: Path | str) -> None:
        path = Path(path)
        self.path = path
        index = path.with_suffix(".idx")
        for file in (path, index):
            if not file.is_file():
                raise DataError(f"there is no {file}: a record set is a .rec file and an .idx file side by side")
        if not path.stat().st_size:
            raise DataError(f"{path} is empty: fetch it again")
        self._places = _places(index)
        with path.open("rb") as stream:
            self._bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def keys(self) -> list[int]:
        """The keys of all records, in order."""
        return sorted(self._places)

    def __getitem__(self, key: int) -> Record:
        """The record of a key of the .idx file."""
        return self._record(key, self._data(key))

    def labels(self, key: int) -> tuple[float, ...]:
        """The labels of a record alone, without reading its image."""
        flag, start, length = self._part(key, self._place(key))
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
            raise self._damaged(key, f"it promises {count} labels")
        return Record(struct.unpack_from(f"<{count}f", data, _HEADER.size), True, data[end:])

    def _data(self, key: int) -> bytes:
        """The bytes of a record, its parts joined."""
        place = self._place(key)
        parts: list[bytes] = []
        while True:
            flag, start, length = self._part(key, place)
            if flag not in ((0, 1) if not parts else (2, 3)):
                raise self._damaged(key, "its parts are out of order")
            parts.append(self._bytes[start : start + length])
            if flag in (0, 3):
                return struct.pack("<I", MAGIC).join(parts)
            place = start + (length + 3) // 4 * 4

    def _place(self, key: int) -> int:
        if key not in self._places:
            raise DataError(f"{self.path.with_suffix('.idx')} has no record {key}: fetch both files again")
        return self._places[key]

    def _part(self, key: int, place: int) -> tuple[int, int, int]:
        """The flag, the start and the length of the part at a place."""
        if place + _WORDS.size > len(self._bytes):
            raise self._damaged(key, "the file ends before it")
        magic, word = _WORDS.unpack_from(self._bytes, place)
        start, length = place + _WORDS.size, word & (1 << 29) - 1
        if magic != MAGIC or start + length > len(self._bytes):
            raise self._damaged(key, "there is no whole record at its place")
        return word >> 29, start, length

    def _damaged(self, key: int, why: str) -> DataError:
        return DataError(f"{self.path}, record {key}: {why}: fetch the .rec and .idx files again")


def _places(index: Path) -> dict[int, int]:
    """Where each key's record begins."""
    try:
        lines = [line.split() for line in index.read_text(encoding="ascii").splitlines() if line.strip()]
        places = {int(key): int(place) for key, place in lines}
    except ValueError:
        raise DataError(f"{index} is no index of records (a key and a place on every line): fetch it again") from None
    if not places or min(places.values()) < 0 or len(places) != len(lines):
        raise DataError(f"{index} is empty or has a key twice: fetch it again")
    return places


@dataclass(frozen=True)
class RecordPeople:
    """Which records are images, and the identity of each."""

    keys: tuple[int, ...]
    identities: tuple[int, ...]


def record_people(records: RecordFile, *, least: int = 1, most_identities: int | None = None) -> RecordPeople:
    """The images of the identities that have `least` or more of them, of the first so many identities.

    Record 0 may say where the records of identities are, and each of those the range of its images; a set without such
    a record is read through once for its labels.
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
                f"{records.path}: records {group[0]} to {group[-1]} belong to one identity and have the labels "
                f"{sorted(labels)[:5]}: fetch the .rec and .idx files again"
            )
        keys += group
        identities += [labels.pop()] * len(group)
    return RecordPeople(tuple(keys), tuple(identities))


def _ranges(records: RecordFile) -> list[tuple[int, int]] | None:
    """The range of image keys of every identity, where record 0 tells."""
    if 0 not in records.keys[:1] or not records[0].listed:
        return None
    last = records.keys[-1]
    start, end = _range(records, 0, last)
    return [_range(records, key, last) for key in range(start, end)]


def _range(records: RecordFile, key: int, last: int) -> tuple[int, int]:
    """The keys that a record names, none beyond the last one: a damaged end would be a list of all numbers up to it."""
    labels = records.labels(key)
    if len(labels) < 2 or not 0 < labels[0] <= labels[1] <= last + 1 or any(label % 1 for label in labels[:2]):
        raise DataError(f"{records.path}, record {key}: {labels} is no range of records: fetch the files again")
    return int(labels[0]), int(labels[1])


def _identity(records: RecordFile, key: int) -> int:
    label = records.labels(key)[0]
    if label < 0 or label % 1:
        raise DataError(f"{records.path}, record {key}: its label {label} is no identity: fetch the files again")
    return int(label)


@dataclass(frozen=True)
class EncodedImages(Sequence[bytes]):
    """The encoded images of records, each read when it is asked for."""

    records: RecordFile
    keys: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, which: int | slice) -> bytes | list[bytes]:  # type: ignore[override]
        if isinstance(which, slice):
            return [self.records[key].content for key in self.keys[which]]
        return self.records[self.keys[which]].content


def read_property(path: Path | str) -> tuple[int, int, int] | None:
    """Identities, height and width from a set's property file; None where there is no such file."""
    path = Path(path)
    if not path.is_file():
        return None
    words = path.read_text(encoding="utf-8", errors="replace").strip().split(",")
    if len(words) != 3 or not all(word.strip().isdecimal() and len(word) < 19 for word in words):
        raise DataError(f"{path} is no 'identities,height,width' line: restore or remove it")
    identities, height, width = map(int, words)
    return identities, height, width
