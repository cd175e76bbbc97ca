"""Packets as Flower's records: words and small tensors in one record, large tensors as arrays that Flower cuts.

A blob is an array of bytes in fedra's own format. Flower carries any format; nothing is unpickled, and no NumPy file is
read. An array that goes to many sites is made, hashed and stored once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedra.federation.wire import MAX_WORDS, Packet, WireError

FORMAT = "fedra.safetensors"
SMALL = 2**18
"""Blobs up to this many bytes travel within the words' record: fewer objects mean fewer requests."""
WORDS, TENSORS, SHARED = "words", "tensors", "shared"


class RecordCodec:
    """Turns packets into records; remembers the last array that several sites receive."""

    def __init__(self) -> None:
        self._last: tuple[bytes, Any] | None = None

    def to_records(self, packet: Packet) -> RecordDict:
        """Return a packet as Flower's records."""
        small = {name: blob for name, blob in packet.blobs.items() if len(blob) <= SMALL}
        large = {name: self._array(name, blob) for name, blob in packet.blobs.items() if len(blob) > SMALL}
        words = ConfigRecord({"kind": packet.kind, "words": packet.words, **{f"blob.{n}": b for n, b in small.items()}})
        records: dict[str, Any] = {WORDS: words}
        if large:
            records[TENSORS] = ArrayRecord(large)
        return RecordDict(records)

    def _array(self, name: str, blob: bytes) -> Any:
        if self._last is not None and self._last[0] is blob:
            return self._last[1]
        array = Array(dtype="uint8", shape=(len(blob),), stype=FORMAT, data=blob)
        if name == SHARED:
            self._last = (blob, array)
        return array


def from_records(records: Any) -> Packet:
    """Return the packet in Flower's records; raises a `WireError` if they hold anything else."""
    if not isinstance(records, RecordDict) or set(records) - {WORDS, TENSORS}:
        raise WireError("a message must hold words and tensors, got other records")
    words = records.config_records.get(WORDS)
    kind, text = (None, None) if words is None else (words.get("kind"), words.get("words"))
    if words is None or not isinstance(kind, str) or not isinstance(text, str):
        raise WireError("a message must have a kind and words")
    if len(text) > MAX_WORDS:
        raise WireError(f"the words of a message must have at most {MAX_WORDS:,} bytes, got {len(text):,}")
    blobs = _small(words)
    for name, array in records.array_records.get(TENSORS, {}).items():
        if array.stype != FORMAT:
            raise WireError(f"tensors must have the format {FORMAT}, got '{array.stype[:40]}'")
        blobs[name] = array.data
    return Packet(kind, text, blobs)


def _small(words: Mapping[str, Any]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for key, value in words.items():
        if key in ("kind", "words"):
            continue
        if not key.startswith("blob.") or not isinstance(value, bytes):
            raise WireError("the words of a message hold something else than words")
        found[key.removeprefix("blob.")] = value
    return found
