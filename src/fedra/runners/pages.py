"""What a process does with memory that it freed: keep it for the next step.

The C library of Linux hands large blocks back to the system at once and asks for them again a moment later; the system
then clears every page anew. A training step frees and takes the same few megabytes hundreds of times a second, which
costs about a twentieth of its time.
"""

from __future__ import annotations

import ctypes
import sys

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""The names of the two settings in malloc.h."""

LARGEST = 32 << 20
"""Blocks up to this size come from the heap that is kept; the C library takes no larger value."""

KEPT = (1 << 31) - 1
"""So much free memory at the end of the heap is not handed back."""


def keep_freed_memory() -> bool:
    """Ask for it, for this process and its forks; whether the C library took it (that of GNU does, others need not)."""
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(MMAP_THRESHOLD, LARGEST)) and bool(library.mallopt(TRIM_THRESHOLD, KEPT))
