"""Messages between a process and its worker: large arrays through memory that both see, the rest through a pipe.

The memory has two halves, which a sender takes in turn: a worker that was told its next task ahead may answer that
one too before anybody has read its first answer. Nobody has three messages on the way. A message counts only when its
text has come through the pipe, so that a process killed while it writes leaves nothing behind that is ever read.
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
"""Arrays begin at multiples of this many bytes."""

SHORT = 4096
"""Bytes of a message that fits into a pipe nobody reads: whoever sends it never waits."""


class Place(NamedTuple):
    """Where an array lies in the memory."""

    start: int
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Line:
    """A pipe, and the memory beside it; without memory all goes through the pipe."""

    pipe: Connection
    memory: np.ndarray
    second_half: bool = False

    def send(self, message: Any) -> None:
        """Tensors travel by value: torch's own pickling by file handle would tie a message to its sender's life."""
        packed = pack(message, pickle.Pickler)
        places: list[Place | np.ndarray] = []
        half = len(self.memory) // 2 // ALIGNMENT * ALIGNMENT
        start, end = (half, 2 * half) if self.second_half else (0, half)
        self.second_half = not self.second_half
        for array in packed.arrays:
            if start + array.nbytes > end:
                places.append(array)
                continue
            self._at(place := Place(start, array.dtype.str, array.shape))[...] = array
            places.append(place)
            start += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        self.pipe.send_bytes(pickle.dumps((packed.text, places), protocol=pickle.HIGHEST_PROTOCOL))

    def whisper(self, message: Any) -> bool:
        """Send a short message, through the pipe alone, to a worker that is at work; a long one is not sent."""
        packed = pack(message, pickle.Pickler)
        text = pickle.dumps((packed.text, packed.arrays), protocol=pickle.HIGHEST_PROTOCOL)
        if len(text) > SHORT:
            return False
        self.pipe.send_bytes(text)
        return True

    def receive(self) -> Any:
        """What our own other end sent, copied out of the memory; nothing from outside ever comes this way."""
        text, places = pickle.loads(self.pipe.recv_bytes())
        arrays = [self._at(place).copy() if isinstance(place, Place) else place for place in places]
        return unpack(Packed(text, arrays))

    def _at(self, place: Place) -> np.ndarray:
        return np.ndarray(place.shape, place.dtype, self.memory, place.start)


def common_memory(size: int) -> np.ndarray:
    """Memory that a process forked from this one shares; unlike /dev/shm it is bounded by the machine's alone."""
    return np.frombuffer(mmap.mmap(-1, size), np.uint8)
