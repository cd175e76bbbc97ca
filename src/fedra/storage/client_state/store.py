"""Client state in RAM up to a limit; the least recently used is moved to disk.

Two background threads assist training: one writes state that leaves RAM (and checkpoints), one reads the state of the
next cohorts. Neither changes what `get` returns. Files are never modified: later state gets a new file, and the older
file is removed when no checkpoint can refer to it.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from fedra.config.schema import RAM, StoredPrecision
from fedra.core.tree import Params, Tree
from fedra.storage.background import Background
from fedra.storage.client_state.client_files import ClientFiles, DamagedFile, File
from fedra.storage.client_state.packed_tree import PackedStack, PackedTree, pack, pack_stack

EVICTION_CANDIDATES = 256
"""How many of the least recently used are checked to make room for one more; checking all would be slow."""

MOSTLY_USED = 0.75
"""A stack of which less is still needed is replaced by a smaller copy, because its memory cannot be freed in part."""


class Snapshot(NamedTuple):
    """A client's state after a round."""

    round: int
    packed: PackedTree


class ClientStates:
    """The state of every client. `known` are the clients' files of a checkpoint; they are read on demand.

    Without `files`, state beyond `ram` (in MB) is written to a temporary folder, which `close` removes.
    """

    def __init__(
        self,
        files: ClientFiles | None = None,
        ram: float = RAM,
        precision: StoredPrecision = "float32",
        known: Mapping[int, File] | None = None,
        writer: Background | None = None,
    ) -> None:
        self._client_files = files
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._limit, self._precision = int(ram * 2**20), precision
        self._files = dict(known or {})
        self._checkpointed = max((file.round for file in self._files.values()), default=0)
        self._writer, self._reader = writer or Background(), Background()
        self._lock = threading.Lock()
        self._held: OrderedDict[int, Snapshot] = OrderedDict()  # least recently used first
        self._used: dict[PackedStack, int] = {}  # how many states of each stack are held
        self._bytes = self._recent = self._largest = 0
        self._expected: dict[int, None] = {}
        self._queue: deque[int] = deque()
        self._reading = False
        self._superseded: list[tuple[int, File]] = []
        self._damaged: dict[int, str] = {}

    def __iter__(self) -> Iterator[int]:
        """The clients that have state."""
        with self._lock:
            return iter(sorted(self._files.keys() | self._held.keys()))

    def __len__(self) -> int:
        with self._lock:
            return len(self._files.keys() | self._held.keys())

    def __bool__(self) -> bool:
        """Whether any client has state."""
        return bool(self._files or self._held)

    @property
    def resident(self) -> int:
        """The bytes of client state in RAM."""
        return self._bytes

    def get(self, client: int) -> Tree:
        """The client's state; empty if it never took part or its file is damaged."""
        (found,) = self.find([client])
        return {} if found is None else found.tree()

    def find(self, clients: Sequence[int]) -> list[PackedTree | None]:
        """The clients' states; None for those that never took part or whose file is damaged."""
        if not self:  # fast path: called for every stack of a round even if no part has state
            return [None] * len(clients)
        with self._lock:
            held = [self._held.get(client) for client in clients]
            for client, one in zip(clients, held, strict=True):
                self._expected.pop(client, None)
                if one is not None:
                    self._held.move_to_end(client)
        self._resume_reading()
        return [self._read(client) if one is None else one.packed for client, one in zip(clients, held, strict=True)]

    def _read(self, client: int) -> PackedTree | None:
        """The state in a client's file, if it has one."""
        file = self._files.get(client)
        if file is None:
            return None
        try:
            return self._disk.read(client, file)
        except DamagedFile as error:
            self._report_damage(client, str(error))
            return None

    def pack(self, memory: Tree) -> PackedTree:
        """Pack a client's state at the stored precision."""
        return pack(memory, self._precision)

    def pack_stack(self, values: Params, count: int) -> list[PackedTree]:
        """Pack the states of several clients, whose tensors have a leading client dimension."""
        return pack_stack(values, count, self._precision).trees()

    def put(self, round: int, memories: Mapping[int, PackedTree]) -> None:
        """Store the state of clients after a round."""
        with self._lock:
            self._drop(memories)
            self._hold({client: Snapshot(round, packed) for client, packed in memories.items()})
            self._recent = sum(packed.nbytes for packed in memories.values())
            self._shrink_stacks()

    def expect(self, clients: Iterable[int]) -> None:
        """Make room for the state of these clients and start reading it, in order."""
        with self._lock:
            self._expected = dict.fromkeys(clients)
            self._queue = deque(c for c in self._expected if c in self._files and c not in self._held)
        self._make_room()
        self._resume_reading()

    def losses(self) -> dict[int, str]:
        """The clients whose files were found damaged since the last call, with the reasons."""
        with self._lock:
            damaged, self._damaged = self._damaged, {}
        return damaged

    def unsaved(self) -> dict[int, Snapshot]:
        """State that is in no file; must not be called while the writer is busy."""
        with self._lock:
            return {client: held for client, held in self._held.items() if self._is_unsaved(client, held)}

    def write(self, snapshots: Mapping[int, Snapshot]) -> None:
        """Write files; only the writer thread may call it."""
        for client, held in snapshots.items():
            file = self._disk.write(client, held.round, held.packed)
            with self._lock:
                self._supersede(client)
                self._files[client] = file

    def files(self) -> dict[int, File]:
        """The newest file of every client; only the writer thread may call it."""
        with self._lock:
            return dict(self._files)

    def sweep(self, checkpointed: int) -> None:
        """Remove replaced files, after the checkpoint of a round is written; only the writer thread may call it."""
        self._remove(0)
        self._checkpointed = checkpointed

    def close(self) -> None:
        """Stop reading, wait for a write in progress, and remove temporary files."""
        with self._lock:
            self._queue.clear()
        self._writer.join()
        self._reader.join()  # after the writer, which may restart it
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def _disk(self) -> ClientFiles:
        if self._client_files is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedra-clients-")
            self._client_files = ClientFiles(Path(self._temporary.name))
        return self._client_files

    def _is_unsaved(self, client: int, held: Snapshot) -> bool:
        file = self._files.get(client)
        return file is None or file.round < held.round

    def _hold(self, snapshots: Mapping[int, Snapshot]) -> None:
        self._held.update(snapshots)
        for stack, rows in Counter(held.packed.stack for held in snapshots.values()).items():
            self._used[stack] = self._used.get(stack, 0) + rows
            self._bytes += rows * stack.bytes_each
            self._largest = max(self._largest, stack.bytes_each)

    def _drop(self, clients: Iterable[int]) -> None:
        dropped = [held for client in clients if (held := self._held.pop(client, None)) is not None]
        for stack, rows in Counter(held.packed.stack for held in dropped).items():
            self._bytes -= rows * stack.bytes_each
            self._used[stack] -= rows
            if not self._used[stack]:
                del self._used[stack]

    def _shrink_stacks(self) -> None:
        """Copy what is still needed out of stacks that were dropped in part."""
        sparse = {stack: list[int]() for stack, rows in self._used.items() if rows < MOSTLY_USED * stack.count}
        for client, held in self._held.items() if sparse else ():
            if held.packed.stack in sparse:
                sparse[held.packed.stack].append(client)
        for stack, clients in sparse.items():
            smaller = stack.select([self._held[client].packed.row for client in clients])
            del self._used[stack]
            self._used[smaller] = smaller.count
            for client, packed in zip(clients, smaller.trees(), strict=True):
                self._held[client] = self._held[client]._replace(packed=packed)

    def _supersede(self, client: int) -> None:
        file = self._files.pop(client, None)
        if file is not None:
            self._superseded.append((client, file))

    def _report_damage(self, client: int, reason: str) -> None:
        with self._lock:
            self._damaged[client] = reason
            self._supersede(client)

    def _make_room(self) -> None:
        """Move state to disk until RAM is below the limit, with room for expected clients.

        While the writer is busy, RAM may exceed the limit by the state of the last round; beyond that, training waits.
        """
        with self._lock:
            typical = self._bytes // max(len(self._held), 1)
            goal = self._limit - min(typical * len(self._queue), self._limit // 2)
        if self._bytes <= goal or (self._writer.busy and self._bytes <= self._limit + self._recent):
            return
        self._writer.wait()
        with self._lock:
            unsaved = self._evict(goal)
        if unsaved:
            self._writer.start(lambda: self._write_and_drop(unsaved))

    def _evict(self, goal: int) -> dict[int, Snapshot]:
        """Drop saved state, least recently used first, expected last; return what must be written before it can go."""
        unsaved: dict[int, Snapshot] = {}
        remaining = self._bytes
        order = list(self._held)
        last = [client for client in self._expected if client in self._held]
        for client in chain((client for client in order if client not in self._expected), last):
            if remaining <= goal:
                break
            held = self._held[client]
            remaining -= held.packed.nbytes
            if self._is_unsaved(client, held):
                unsaved[client] = held
            else:
                self._drop([client])
        self._shrink_stacks()
        return unsaved

    def _write_and_drop(self, unsaved: Mapping[int, Snapshot]) -> None:
        for client, held in unsaved.items():
            self.write({client: held})
            with self._lock:
                current = self._held.get(client)
                if current is not None and current.round == held.round:
                    self._drop([client])
        with self._lock:
            self._shrink_stacks()
        self._remove(self._checkpointed)
        self._resume_reading()

    def _remove(self, after: int) -> None:
        """Remove replaced files of rounds after this one, which no checkpoint lists."""
        with self._lock:
            replaced = [(client, file) for client, file in self._superseded if file.round > after]
            self._superseded = [(client, file) for client, file in self._superseded if file.round <= after]
        for client, file in replaced:
            self._disk.remove(client, file)

    def _resume_reading(self) -> None:
        """Start the reader thread if there is something to read and room for it."""
        with self._lock:
            if self._reading or not self._queue or not self._fits(self._largest):
                return
            self._reading = True
        self._reader.start(self._read_ahead)

    def _read_ahead(self) -> None:
        while (item := self._next()) is not None:
            client, file = item
            try:
                held = Snapshot(file.round, self._disk.read(client, file))
            except DamagedFile:
                continue  # `get` reports it, unless a newer file has replaced it
            with self._lock:
                if self._files.get(client) != file or client in self._held:
                    continue
                self._largest = max(self._largest, held.packed.nbytes)
                if not self._fits(held.packed.nbytes):
                    self._queue.appendleft(client)
                    self._reading = False
                    return
                self._hold({client: held})

    def _next(self) -> tuple[int, File] | None:
        with self._lock:
            while self._queue and self._fits(self._largest):
                client = self._queue.popleft()
                if client in self._files and client in self._expected:
                    return client, self._files[client]
            self._reading = False
            return None

    def _fits(self, size: int) -> bool:
        """Whether `size` more bytes fit, after dropping saved state that is not expected."""
        for client in list(islice(self._held, EVICTION_CANDIDATES)):
            if self._bytes + size <= self._limit:
                break
            if client not in self._expected and not self._is_unsaved(client, self._held[client]):
                self._drop([client])
        return self._bytes + size <= self._limit
