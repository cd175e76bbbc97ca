"""Packed trees as files with checksums; one file per client, a thousand clients per folder."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

import safetensors

from fedra.errors import RunError
from fedra.storage.client_state.packed_tree import PackedTree, decode, encode
from fedra.writing import write_atomically

CLIENTS_PER_FOLDER = 1000

FEW = 16
"""Up to this many files are synced one by one; for more, `os.sync` is faster."""


class DamagedFile(RunError):
    """A file is missing, or its content has changed."""


class File(NamedTuple):
    """A client's file: the round after which it was written, and the first half of its SHA-256."""

    round: int
    digest: str


def write_packed(path: Path, packed: PackedTree, durable: bool = True) -> str:
    """Write a file atomically and return its checksum."""
    data = encode(packed)
    write_atomically(path, data, durable, private=True)  # state of clients, and rows that show people
    return digest_of(data)


def read_packed(path: Path, digest: str) -> PackedTree:
    """Read a file; raises DamagedFile if its checksum differs."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedFile(f"the file '{path}' cannot be read ({error.strerror})") from None
    if digest_of(data) != digest:
        raise DamagedFile(f"the file '{path}' is damaged (its checksum differs)")
    try:
        return decode(data)
    except (safetensors.SafetensorError, KeyError) as error:
        raise DamagedFile(f"the file '{path}' is damaged ({error})") from None


def digest_of(data: bytes) -> str:
    """The first half of the SHA-256 of a file's content."""
    return hashlib.sha256(data).hexdigest()[:32]


class ClientFiles:
    """The clients' files in one folder. Newer state gets a new file name, so the older file stays intact.

    Files survive a power failure after `sync`, which a checkpoint calls once for all its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._unsynced: set[Path] = set()

    def path(self, client: int, round: int) -> Path:
        return self.folder / f"{client // CLIENTS_PER_FOLDER:04d}" / f"{client:07d}-{round:06d}.safetensors"

    def write(self, client: int, round: int, packed: PackedTree) -> File:
        path = self.path(client, round)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = File(round, write_packed(path, packed, durable=False))
        self._unsynced.add(path)
        return file

    def read(self, client: int, file: File) -> PackedTree:
        return read_packed(self.path(client, file.round), file.digest)

    def remove(self, client: int, file: File) -> None:
        path = self.path(client, file.round)
        path.unlink(missing_ok=True)
        self._unsynced.discard(path)

    def sync(self) -> None:
        """Wait until all written files are on disk."""
        if len(self._unsynced) > FEW and sys.platform == "linux":  # elsewhere `os.sync` does not wait
            os.sync()
        else:
            for path in self._unsynced:
                with open(path, "rb+") as file:
                    os.fsync(file.fileno())
        self._unsynced.clear()
