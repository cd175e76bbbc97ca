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


class Inbox:
    """Answers on the coordinator's disk, by the digest of their question.

    They stay until their round is done, so memory stays flat and a crash keeps what came.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, round: int, site: str, question: str, answer: Packet) -> None:
        """Write an answer of a round, counted from 1."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_packet(self._folder / f"{round:06d}-{site}-{question}.answer", answer)

    def has(self, site: str, question: str) -> bool:
        """Return whether the answer of a site to a question is there and whole."""
        return self.get(site, question) is not None

    def get(self, site: str, question: str) -> Packet | None:
        """Return the answer of a site to a question, if it is there and whole."""
        for path in self._folder.glob(f"*-{site}-{question}.answer"):
            return read_packet(path)
        return None

    def forget(self, durable: int) -> None:
        """Remove the answers of rounds up to the last checkpoint, and what a killed process left."""
        for path in self._folder.glob("*.answer*"):
            if path.suffix != ".answer" or int(path.name.partition("-")[0]) <= durable:
                path.unlink(missing_ok=True)
