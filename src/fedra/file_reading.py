"""Read files that others may have written: regular files alone, of a bounded size, all bytes at once.

A pipe or a device may never end, and a file that another process replaces must not be opened twice.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

SMALL = 16 * 2**20
"""Largest size of a list, a table or another file of text, in bytes."""

LARGE = 4 * 2**30
"""Largest size of a record with a line per round or client, of a gallery or of a model, in bytes."""


def read_file(path: Path | str, largest: int) -> bytes:
    """Return the content of a regular file of at most `largest` bytes; raise OSError with a reason otherwise."""
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(opened, "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is a device or a pipe, not a file", str(path))
        if found.st_size > largest:
            raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, more than {largest:,}", str(path))
        return file.read(found.st_size)


def read_text_file(path: Path | str, largest: int = SMALL) -> str:
    """Return the content of a small UTF-8 file; raise OSError, or UnicodeDecodeError for other encodings."""
    return read_file(path, largest).decode("utf-8")
