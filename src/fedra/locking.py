"""Locks on files: one process's at a time, and gone with it however it ends."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedra.errors import RunError

PAUSE = 0.05
"""Seconds between two tries."""


@contextmanager
def locked(file: Path, busy: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock `file` inside the block; `busy` is told if another holds it for more than `patience` seconds.

    The file is there only while somebody holds the lock or after a kill, and then it keeps nobody out.
    """
    end = time.monotonic() + patience
    while (held := _take(file)) is None:
        if time.monotonic() >= end:
            raise RunError(busy)
        time.sleep(PAUSE)
    try:
        yield
    finally:
        _leave(file, held)


if sys.platform == "win32":
    from filelock import FileLock, Timeout

    def _take(file: Path) -> FileLock | None:
        lock = FileLock(file)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock

    def _leave(file: Path, held: FileLock) -> None:
        held.release()
        with suppress(OSError):  # Windows keeps a file that another has opened: it is theirs to remove
            file.unlink(missing_ok=True)

else:
    import fcntl

    # A lock belongs to the open file, which a fork shares: what a worker inherits would outlive a killed run.
    _HELD: set[int] = set()

    def _forget() -> None:
        while _HELD:
            os.close(_HELD.pop())

    os.register_at_fork(after_in_child=_forget)

    def _take(file: Path) -> int | None:
        while True:
            held = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            _HELD.add(held)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                    return held  # a file system without locks is used as one was before there were any
                _close(held)
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    return None
                raise
            if os.fstat(held).st_nlink:
                return held
            _close(held)  # its last holder removed it between our two calls: it keeps nobody out

    def _leave(file: Path, held: int) -> None:
        if held in _HELD:  # else this is a fork, and the lock its parent's
            if os.fstat(held).st_nlink:
                with suppress(OSError):
                    file.unlink(missing_ok=True)  # before it is let go: after that it may be another's
            _close(held)

    def _close(held: int) -> None:
        _HELD.discard(held)
        os.close(held)
