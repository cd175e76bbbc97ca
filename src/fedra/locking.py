"""File locks, held by one process at a time and released when it ends, however it ends."""

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
"""Seconds between two attempts."""


@contextmanager
def hold_lock(file: Path, busy: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock `file` inside the block; raise `busy` if another process holds it for over `patience` seconds.

    The file exists while the lock is held. A killed process may leave it behind, but then it does not lock.
    """
    end = time.monotonic() + patience
    while (held := _acquire(file)) is None:
        if time.monotonic() >= end:
            raise RunError(busy)
        time.sleep(PAUSE)
    try:
        yield
    finally:
        _release(file, held)


def is_held(file: Path) -> bool:
    """Return whether a process holds the lock `file`; a file that a killed process left does not count."""
    if not file.is_file():
        return False
    try:
        return _probe(file)
    except OSError:  # it was removed meanwhile, or must not be read
        return file.exists()


if sys.platform == "win32":
    from filelock import FileLock, Timeout

    def _acquire(file: Path) -> FileLock | None:
        lock = FileLock(file)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock

    def _probe(file: Path) -> bool:
        found = _acquire(file)
        if found is not None:
            found.release()
        return found is None

    def _release(file: Path, held: FileLock) -> None:
        held.release()
        with suppress(OSError):  # Windows keeps a file that another process has opened; that process removes it
            file.unlink(missing_ok=True)

else:
    import fcntl

    # A lock belongs to the open file, which a fork shares: a worker that inherits it would outlive a killed run.
    _HELD: set[int] = set()

    def _close_inherited() -> None:
        while _HELD:
            os.close(_HELD.pop())

    os.register_at_fork(after_in_child=_close_inherited)

    def _acquire(file: Path) -> int | None:
        while True:
            held = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            _HELD.add(held)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                    return held  # the file system has no locks: continue without one
                _close(held)
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    return None
                raise
            if os.fstat(held).st_nlink:
                return held
            _close(held)  # its last holder removed the file between our two calls, so it does not lock

    def _probe(file: Path) -> bool:
        probe = os.open(file, os.O_RDONLY)  # unlike _acquire, this writes nothing
        try:
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True  # held, or the file system has no locks and only the file shows that a process is there
        finally:
            os.close(probe)
        return False

    def _release(file: Path, held: int) -> None:
        if held in _HELD:  # otherwise this is a fork, and the lock belongs to its parent
            if os.fstat(held).st_nlink:
                with suppress(OSError):
                    file.unlink(missing_ok=True)  # before releasing: afterward another process may hold it
            _close(held)

    def _close(held: int) -> None:
        _HELD.discard(held)
        os.close(held)
