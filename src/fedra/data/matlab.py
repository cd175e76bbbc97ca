"""Read arrays of numbers from MATLAB files (version 5), and nothing else.

Every size is compared with the bytes that are there before anything is made of it, because SciPy's reader can crash the
process on a damaged file.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedra.file_reading import LARGE, read_file

HEADER = 128
LARGEST = 2**32
"""Bytes that one variable may have after it is unpacked; the largest of SVHN has 1.6 GB."""
MATRIX, COMPRESSED = 14, 15
NUMBERS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
"""NumPy types of stored numbers by their code in the file."""
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""NumPy types of arrays by the code of their class; other classes (cells, structures, text) are left out."""


class DamagedMatlab(ValueError):
    """A file that is not a MATLAB file of version 5, or damaged."""


def read_matlab(path: Path) -> dict[str, NDArray[Any]]:
    """Return the numeric arrays of a file by name.

    Args:
        path: A MATLAB file of version 5, little-endian, compressed or not.

    Returns:
        The arrays, with MATLAB's order of dimensions.

    Raises:
        DamagedMatlab: If the file is anything else.
    """
    content = memoryview(read_file(path, LARGE))
    if len(content) < HEADER or bytes(content[124:128]) != b"\x00\x01IM":
        raise DamagedMatlab("it has no header of MATLAB 5")
    found: dict[str, NDArray[Any]] = {}
    for kind, data in _elements(content[HEADER:], aligned=False):
        if kind == COMPRESSED:
            inner = list(_elements(memoryview(_inflate(data)), aligned=False))
            kind, data = inner[0] if inner else (0, data)
        if kind == MATRIX and (array := _array(data)) is not None:
            found[array[0]] = array[1]
    return found


def _elements(content: memoryview, aligned: bool = True) -> Iterator[tuple[int, memoryview]]:
    """Yield the type and the bytes of every element; those inside of a matrix are aligned to eight bytes."""
    place = 0
    while place + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, place)
        if kind >> 16:  # a small element: type and size share four bytes, and the data are in the next four
            kind, size, start, end = kind & 0xFFFF, kind >> 16, place + 4, place + 8
            if size > 4:
                raise DamagedMatlab("a small element has more than four bytes")
        else:
            start, end = place + 8, place + 8 + size + (-size % 8 if aligned else 0)
        if start + size > len(content):
            raise DamagedMatlab("an element is longer than the file")
        yield kind, content[start : start + size]
        place = end


def _inflate(data: memoryview) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(data, LARGEST)
    except zlib.error as error:
        raise DamagedMatlab(f"it cannot be unpacked: {error}") from None
    if not unpacker.eof:
        raise DamagedMatlab("a compressed element is cut off or too large")
    return content


def _array(data: memoryview) -> tuple[str, NDArray[Any]] | None:
    """Return the name and the numbers of a matrix; None if it has no plain numbers."""
    parts = list(_elements(data))
    if len(parts) < 4 or len(parts[0][1]) != 8 or parts[1][0] != 5 or len(parts[1][1]) % 4:
        raise DamagedMatlab("a matrix lacks its flags, dimensions, name or numbers")
    (_, flags), (_, dimensions), (_, name), (kind, numbers) = parts[:4]
    stored, wanted = NUMBERS.get(kind), CLASSES.get(flags[0])
    if stored is None or wanted is None or flags[1] & 0x0E:  # complex, global or logical
        return None
    shape = tuple(np.frombuffer(dimensions, "<i4").tolist())
    if len(shape) < 2 or min(shape) < 0 or math.prod(shape) * np.dtype(stored).itemsize != len(numbers):
        raise DamagedMatlab(f"the dimensions {shape} do not match {len(numbers)} bytes")
    values = np.frombuffer(numbers, stored).astype(wanted, copy=False)
    return bytes(name).decode("ascii", errors="replace"), values.reshape(shape, order="F")
