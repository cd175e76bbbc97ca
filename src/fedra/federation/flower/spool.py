"""Flower's object store with large objects on disk: memory does not grow with the number of answers that come."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fedra.federation.flower.private_names import load
from fedra.writing import NEW

LARGE = 2**16
"""Bytes from which an object is kept in a file."""

InMemoryObjectStore = load("InMemoryObjectStore")


class SpooledStore(InMemoryObjectStore):  # type: ignore[misc,valid-type]
    """Objects by the SHA-256 of their content; of large ones, memory holds the name alone.

    What is in the folder belongs to questions and answers on their way: it is worthless after a restart, so it is
    removed at the start and not flushed to the disk.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)

    def put(self, object_id: str, object_content: bytes) -> None:
        super().put(object_id, object_content)  # checks that the content has this name
        with self.lock_store:
            entry = self.store.get(object_id)
            if entry is None or len(entry.content) <= LARGE:
                return
            path = self._folder / object_id
            try:
                with open(os.open(path, os.O_WRONLY | NEW, 0o600), "wb") as file:
                    file.write(entry.content)
            except OSError:  # a full disk: it stays in memory, and writing the answer to the inbox says so
                path.unlink(missing_ok=True)
            else:
                entry.content = b""

    def get(self, object_id: str) -> bytes | None:
        with self.lock_store:
            entry = self.store.get(object_id)
            if entry is None or entry.content or not entry.is_available:
                return None if entry is None else bytes(entry.content)
            return (self._folder / object_id).read_bytes()

    def close(self) -> None:
        """Remove what is left."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def delete(self, object_id: str) -> None:
        super().delete(object_id)  # calls this method again for what was part of the object alone
        with self.lock_store:
            if object_id not in self.store:
                (self._folder / object_id).unlink(missing_ok=True)
