"""Keep freed memory in the process for the next step.

By default, glibc returns large freed blocks to the system at once, and the system clears every page when they are
requested again. A training step frees and allocates the same few megabytes hundreds of times per second, which costs
about 5 % of its time.
"""

from __future__ import annotations

import ctypes
import sys

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Parameter numbers of mallopt in malloc.h."""

LARGEST = 32 << 20
"""Blocks up to this size are allocated from the heap; glibc's maximum."""

RETURNED = 1 << 18
"""Blocks from this size on are given back at once where memory matters more than time."""

RETAINED = (1 << 31) - 1
"""Free bytes at the end of the heap that are not returned to the system."""


def keep_freed_memory() -> bool:
    """Keep freed memory in this process and its forks; returns whether the C library supports it (glibc does)."""
    return _set_option(MMAP_THRESHOLD, LARGEST) and _set_option(TRIM_THRESHOLD, RETAINED)


def return_large_blocks() -> bool:
    """Give large blocks back to the system as soon as they are freed; returns whether the C library supports it.

    A server whose threads take and free blocks of megabytes would otherwise keep many of them, in a heap per thread.
    """
    return _set_option(MMAP_THRESHOLD, RETURNED)


def _set_option(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    return hasattr(library, "mallopt") and bool(library.mallopt(option, value))


def return_freed_memory() -> None:
    """Give freed memory back to the system if the C library can (glibc does): after a large message, most is unused."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)
