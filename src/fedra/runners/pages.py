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

RETAINED = (1 << 31) - 1
"""Free bytes at the end of the heap that are not returned to the system."""


def keep_freed_memory() -> bool:
    """Keep freed memory in this process and its forks; returns whether the C library supports it (glibc does)."""
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(MMAP_THRESHOLD, LARGEST)) and bool(library.mallopt(TRIM_THRESHOLD, RETAINED))


def return_freed_memory() -> None:
    """Give freed memory back to the system if the C library can (glibc does): after a large message, most is unused."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)
