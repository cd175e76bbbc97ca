"""Messages between a process and its worker: large arrays through shared memory, the rest through a pipe.

The memory has two halves, used in turn: a worker that got its next task early may send a second answer before the
first is read, but there are never three messages in flight. A message is valid only when its text has arrived through
the pipe, so what a killed process left in the memory is never read.
"""

from __future__ import annotations

import mmap
import pickle
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from fedra.runners.packing import Packed, pack, unpack

ALIGNMENT = 64
"""Arrays start at multiples of this many bytes."""

SHORT = 4096
"""Bytes that fit into a pipe's buffer, so sending them never blocks."""


class Location(NamedTuple):
    """Where an array is in the memory."""

    start: int
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Channel:
    """A pipe with shared memory; without memory everything goes through the pipe."""

    pipe: Connection
    memory: np.ndarray
    second_half: bool = False

    def send(self, message: Any) -> None:
        """Send a message by value: torch's own pickling by file handle needs the sender to stay alive."""
        packed = pack(message, pickle.Pickler)
        arrays: list[Location | np.ndarray] = []
        half = len(self.memory) // 2 // ALIGNMENT * ALIGNMENT
        start, end = (half, 2 * half) if self.second_half else (0, half)
        self.second_half = not self.second_half
        for array in packed.arrays:
            if start + array.nbytes > end:
                arrays.append(array)
                continue
            self._at(location := Location(start, array.dtype.str, array.shape))[...] = array
            arrays.append(location)
            start += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        self.pipe.send_bytes(pickle.dumps((packed.text, arrays), protocol=pickle.HIGHEST_PROTOCOL))

    def send_if_short(self, message: Any) -> bool:
        """Send a message to a busy worker through the pipe if it is short enough not to block; returns whether."""
        packed = pack(message, pickle.Pickler)
        text = pickle.dumps((packed.text, packed.arrays), protocol=pickle.HIGHEST_PROTOCOL)
        if len(text) > SHORT:
            return False
        self.pipe.send_bytes(text)
        return True

    def receive(self) -> Any:
        """Receive a message, with arrays copied out of the memory. Both ends are ours, so unpickling is safe."""
        text, sent = pickle.loads(self.pipe.recv_bytes())
        arrays = [self._at(array).copy() if isinstance(array, Location) else array for array in sent]
        return unpack(Packed(text, arrays))

    def _at(self, location: Location) -> np.ndarray:
        return np.ndarray(location.shape, location.dtype, self.memory, location.start)


def shared_memory(size: int) -> np.ndarray:
    """Memory shared with forks of this process; unlike /dev/shm it is limited only by the machine's memory."""
    return np.frombuffer(mmap.mmap(-1, size), np.uint8)
