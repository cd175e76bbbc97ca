"""What a site keeps on its disk between messages: versions of client state, answers, and the start model.

A version is named by the round and the attempt that it was stored in, and the coordinator says which one a client
begins with. So a client's round is a function of the message and that version, and a kill, a repetition or a resumed
coordinator changes nothing. An answer is kept under the digest of its question: asked again, a site sends it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from fedra.config.schema import StoredPrecision
from fedra.core.tree import Tree
from fedra.federation.packet_files import read_packet, write_packet
from fedra.federation.wire import Packet
from fedra.storage.client_state import DamagedFile, pack
from fedra.storage.client_state.client_files import digest_of, read_packed
from fedra.storage.client_state.packed_tree import encode
from fedra.writing import write_atomically

VERSION = re.compile(r"(\d{6})-(\d{4})-([0-9a-f]{32})\.safetensors")


class SiteMemory:
    """Versions of each client's state in one folder."""

    def __init__(self, folder: Path, precision: StoredPrecision = "float32") -> None:
        self._folder, self._precision = folder, precision

    def load(self, client: int, version: tuple[int, int]) -> Tree:
        """Return a version of a client's state; raises DamagedFile if it is lost."""
        for path, found in self._versions(client).items():
            if found == version:
                match = VERSION.fullmatch(path.name)
                assert match is not None
                return read_packed(path, match[3]).tree()
        raise DamagedFile(f"the state of client {client} after round {version[0] + 1} is not at this site")

    def store(self, client: int, version: tuple[int, int], memory: Tree) -> None:
        """Store a version; one of the same name is replaced, because it has the same content."""
        data = encode(pack(memory, self._precision))
        folder = self._folder / f"{client:07d}"
        folder.mkdir(parents=True, exist_ok=True)
        old = [path for path, found in self._versions(client).items() if found == version]
        name = f"{version[0]:06d}-{version[1]:04d}-{digest_of(data)}.safetensors"
        write_atomically(folder / name, data)
        for path in old:
            if path.name != name:
                path.unlink(missing_ok=True)

    def forget(self, named: Mapping[int, tuple[int, int]], durable: int) -> None:
        """Remove versions that the coordinator will not name again.

        `named` is what it names now. If that was stored before its last checkpoint, of round `durable`, everything
        older is not needed anymore.
        """
        for client, version in named.items():
            if version[0] < durable:
                for path, found in self._versions(client).items():
                    if found < version:
                        path.unlink(missing_ok=True)

    def clients(self) -> list[int]:
        """Return the clients that have stored state."""
        return sorted(int(path.name) for path in self._folder.glob("[0-9]*"))

    def newest(self, client: int) -> tuple[int, int] | None:
        """Return a client's newest version."""
        return max(self._versions(client).values(), default=None)

    def _versions(self, client: int) -> dict[Path, tuple[int, int]]:
        found = {path: VERSION.fullmatch(path.name) for path in (self._folder / f"{client:07d}").glob("*.safetensors")}
        return {path: (int(match[1]), int(match[2])) for path, match in found.items() if match}


class Outbox:
    """Answers to training questions, kept until the coordinator has stored their round."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, question: str) -> Packet | None:
        """Return the answer to a question, by its digest."""
        for path in self._folder.glob(f"*-{question}.answer"):
            return read_packet(path)
        return None

    def keep(self, round: int, question: str, answer: Packet) -> None:
        """Keep an answer until its round is durable."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_packet(self._folder / f"{round:06d}-{question}.answer", answer)

    def forget(self, durable: int) -> None:
        """Remove the answers of rounds that the coordinator has stored."""
        for path in self._folder.glob("*-*.answer"):
            if int(path.name.partition("-")[0]) < durable:
                path.unlink(missing_ok=True)
