"""Client memories in RAM up to a cap; the least recently used leave it for the disk.

Two threads work beside the training: one writes what leaves RAM (and checkpoints), one reads what the coming cohorts
remember. Neither changes what `get` returns. A file is never changed: what a client remembers after a later round
gets another name, and the older file goes when no checkpoint can name it any more.
"""

from __future__ import annotations

import tempfile
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from fedra.config.schema import RAM, StoredPrecision
from fedra.core.tree import Tree
from fedra.storage.background import Background
from fedra.storage.client_state.client_files import ClientFiles, Damaged, File
from fedra.storage.client_state.packed_tree import PackedTree, pack

LOOK = 256
"""How many of the least recently used are looked at when one more is to fit: looking at all would take its time."""


class Held(NamedTuple):
    """What a client remembers after a round."""

    round: int
    packed: PackedTree


class Memories:
    """What every client remembers. `known` are the clients' files of a checkpoint: nothing is read before it is needed.

    Without `files` what exceeds `ram` (in MB) goes to a temporary folder, which `close` removes.
    """

    def __init__(
        self,
        files: ClientFiles | None = None,
        ram: float = RAM,
        precision: StoredPrecision = "float32",
        known: Mapping[int, File] | None = None,
        writer: Background | None = None,
    ) -> None:
        self._place = files
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._cap, self._precision = int(ram * 2**20), precision
        self._files = dict(known or {})
        self._named = max((file.round for file in self._files.values()), default=0)
        self._writer, self._reader = writer or Background(), Background()
        self._lock = threading.Lock()
        self._held: OrderedDict[int, Held] = OrderedDict()  # the least recently used first
        self._bytes = self._recent = self._largest = 0
        self._expected: dict[int, None] = {}
        self._queue: deque[int] = deque()
        self._reading = False
        self._superseded: list[tuple[int, File]] = []
        self._losses: dict[int, str] = {}

    def __iter__(self) -> Iterator[int]:
        """The clients that remember anything."""
        with self._lock:
            return iter(sorted(self._files.keys() | self._held.keys()))

    def __len__(self) -> int:
        with self._lock:
            return len(self._files.keys() | self._held.keys())

    def __bool__(self) -> bool:
        """Whether anybody remembers anything."""
        return bool(self._files or self._held)

    @property
    def resident(self) -> int:
        """The bytes of all memories in RAM."""
        return self._bytes

    def get(self, client: int) -> Tree:
        """What the client remembers; of one that never took part, or whose file is damaged, nothing."""
        if not self:  # asked a thousand times a round where no part remembers anything
            return {}
        with self._lock:
            held, file = self._held.get(client), self._files.get(client)
            self._expected.pop(client, None)
            if held is not None:
                self._held.move_to_end(client)
        self._go_on_reading()
        if held is not None:
            return held.packed.tree()
        if file is None:
            return {}
        try:
            return self._disk.read(client, file).tree()
        except Damaged as error:
            self._lose(client, str(error))
            return {}

    def pack(self, memory: Tree) -> PackedTree:
        """What a client is to remember, at the precision that things are kept in."""
        return pack(memory, self._precision)

    def put(self, round: int, memories: Mapping[int, PackedTree]) -> None:
        """Keep what clients remember after a round."""
        with self._lock:
            for client, one in memories.items():
                self._drop(client)
                self._hold(client, Held(round, one))
            self._recent = sum(one.nbytes for one in memories.values())

    def expect(self, clients: Iterable[int]) -> None:
        """Begin to read what these clients remember, in their order, after making room for it."""
        with self._lock:
            self._expected = dict.fromkeys(clients)
            self._queue = deque(c for c in self._expected if c in self._files and c not in self._held)
        self._make_room()
        self._go_on_reading()

    def losses(self) -> dict[int, str]:
        """The clients whose files were found damaged since this was last asked, each with the reason."""
        with self._lock:
            losses, self._losses = self._losses, {}
        return losses

    def unsaved(self) -> dict[int, Held]:
        """What no file holds; nothing may be on its way to the disk meanwhile."""
        with self._lock:
            return {client: held for client, held in self._held.items() if self._is_unsaved(client, held)}

    def write(self, some: Mapping[int, Held]) -> None:
        """Write files; for the writing thread, which alone changes what is on the disk."""
        for client, held in some.items():
            file = self._disk.write(client, held.round, held.packed)
            with self._lock:
                self._supersede(client)
                self._files[client] = file

    def files(self) -> dict[int, File]:
        """The newest file of every client; for the writing thread."""
        with self._lock:
            return dict(self._files)

    def sweep(self, named: int) -> None:
        """Remove the files that newer ones have replaced, now that the checkpoint of the round `named` stands; for
        the writing thread.
        """
        self._remove(0)
        self._named = named

    def close(self) -> None:
        """Stop reading, let a file that is being written come to its end, and remove what was temporary."""
        with self._lock:
            self._queue.clear()
        self._writer.join()
        self._reader.join()  # the writer may have let it go on
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def _disk(self) -> ClientFiles:
        if self._place is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedra-clients-")
            self._place = ClientFiles(Path(self._temporary.name))
        return self._place

    def _is_unsaved(self, client: int, held: Held) -> bool:
        file = self._files.get(client)
        return file is None or file.round < held.round

    def _hold(self, client: int, held: Held) -> None:
        self._held[client] = held
        self._bytes += held.packed.nbytes
        self._largest = max(self._largest, held.packed.nbytes)

    def _drop(self, client: int) -> None:
        held = self._held.pop(client, None)
        self._bytes -= held.packed.nbytes if held else 0

    def _supersede(self, client: int) -> None:
        file = self._files.pop(client, None)
        if file is not None:
            self._superseded.append((client, file))

    def _lose(self, client: int, reason: str) -> None:
        with self._lock:
            self._losses[client] = reason
            self._supersede(client)

    def _make_room(self) -> None:
        """Let memories leave RAM until it is below its cap, with room for those that are expected.

        While the writer is busy RAM may hold what the last round brought beyond the cap; then training waits.
        """
        with self._lock:
            typical = self._bytes // max(len(self._held), 1)
            goal = self._cap - min(typical * len(self._queue), self._cap // 2)
        if self._bytes <= goal or (self._writer.busy and self._bytes <= self._cap + self._recent):
            return
        self._writer.wait()
        with self._lock:
            leaving = self._shed(goal)
        if leaving:
            self._writer.start(lambda: self._spill(leaving))

    def _shed(self, goal: int) -> dict[int, Held]:
        """Drop what files hold, least recently used first, expected last; return what has to be written before."""
        leaving: dict[int, Held] = {}
        left = self._bytes
        order = list(self._held)
        last = [client for client in self._expected if client in self._held]
        for client in chain((client for client in order if client not in self._expected), last):
            if left <= goal:
                break
            held = self._held[client]
            left -= held.packed.nbytes
            if self._is_unsaved(client, held):
                leaving[client] = held
            else:
                self._drop(client)
        return leaving

    def _spill(self, leaving: Mapping[int, Held]) -> None:
        for client, held in leaving.items():
            self.write({client: held})
            with self._lock:
                if self._held.get(client) is held:
                    self._drop(client)
        self._remove(self._named)
        self._go_on_reading()

    def _remove(self, after: int) -> None:
        """Remove the replaced files of rounds after this one: no checkpoint names them."""
        with self._lock:
            replaced = [(client, file) for client, file in self._superseded if file.round > after]
            self._superseded = [(client, file) for client, file in self._superseded if file.round <= after]
        for client, file in replaced:
            self._disk.remove(client, file)

    def _go_on_reading(self) -> None:
        """Start the reading thread where something is left to read and it has stopped for want of room."""
        with self._lock:
            if self._reading or not self._queue or not self._fits(self._largest):
                return
            self._reading = True
        self._reader.start(self._read_ahead)

    def _read_ahead(self) -> None:
        while (order := self._next()) is not None:
            client, file = order
            try:
                held = Held(file.round, self._disk.read(client, file))
            except Damaged:
                continue  # `get` will find the same, or that a newer file has taken its place
            with self._lock:
                if self._files.get(client) != file or client in self._held:
                    continue
                self._largest = max(self._largest, held.packed.nbytes)
                if not self._fits(held.packed.nbytes):
                    self._queue.appendleft(client)
                    self._reading = False
                    return
                self._hold(client, held)

    def _next(self) -> tuple[int, File] | None:
        with self._lock:
            while self._queue and self._fits(self._largest):
                client = self._queue.popleft()
                if client in self._files and client in self._expected:
                    return client, self._files[client]
            self._reading = False
            return None

    def _fits(self, size: int) -> bool:
        """Whether there is room for so many bytes more, when what files hold and nobody expects has left."""
        for client in list(islice(self._held, LOOK)):
            if self._bytes + size <= self._cap:
                break
            if client not in self._expected and not self._is_unsaved(client, self._held[client]):
                self._drop(client)
        return self._bytes + size <= self._cap
