"""Messages as files: a line of JSON with the sizes, then the words and the tensors; written whole or not at all.

Large tensors are written and read piece by piece, without another copy in memory.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from fedra.federation.wire import Packet
from fedra.writing import replacing


class PacketHeader(BaseModel):
    """The first line of a message's file: its kind, the sizes of what follows, and the digest of all that."""

    model_config = ConfigDict(strict=True)
    kind: str
    words: NonNegativeInt
    blobs: dict[str, NonNegativeInt]
    sha256: str


def write_packet(path: Path, packet: Packet) -> None:
    """Write a message to a file."""
    words = packet.words.encode()
    pieces = [words, *packet.blobs.values()]
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    sizes = {name: len(blob) for name, blob in packet.blobs.items()}
    header = PacketHeader(kind=packet.kind, words=len(words), blobs=sizes, sha256=found.hexdigest())
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(header.model_dump_json().encode() + b"\n")
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def read_packet(path: Path) -> Packet | None:
    """Read a message; None if the file is damaged, so that the question is asked again."""
    try:
        with open(path, "rb") as file:
            about = PacketHeader.model_validate_json(file.readline())
            # A damaged size must not ask for more memory than there is file.
            if max(about.words, *about.blobs.values(), 0) > os.fstat(file.fileno()).st_size:
                return None
            words = file.read(about.words)
            blobs = {name: file.read(size) for name, size in about.blobs.items()}
            rest = file.read(1)
        found = hashlib.sha256(words)
        for blob in blobs.values():
            found.update(blob)
        if rest or found.hexdigest() != about.sha256:
            return None
        return Packet(about.kind, words.decode(), blobs)
    except (OSError, ValueError):
        return None
