"""The memory of this machine, compared with what a setting needs before anything is allocated."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fedra.errors import ConfigError

CGROUP = Path("/sys/fs/cgroup/memory.max")
"""The limit of a container on Linux, in bytes, or "max"."""


def physical_memory() -> int | None:
    """Return the bytes of memory that this process may use at most, or None if the system does not say."""
    found = []
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # there is no container, or it has no limit
        found.append(int(CGROUP.read_text(encoding="ascii")))
    return min(found, default=None)


def require_memory(what: str, needed: int, remedy: str) -> None:
    """Raise ConfigError if `what` needs more bytes than this machine has."""
    memory = physical_memory()
    if memory is not None and needed > memory:
        raise ConfigError(
            f"{what} must fit into the memory of this machine ({memory / 1e9:.1f} GB), got {format_bytes(needed)}: "
            f"{remedy}"
        )


def format_bytes(size: int) -> str:
    """Return a size in words; Python cannot convert integers of hundreds of digits to floats."""
    return f"{size / 1e9:,.1f} GB" if size < 1e24 else "more than 10^15 GB"
