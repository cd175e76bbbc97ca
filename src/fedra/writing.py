"""Atomic file writes: under a temporary name, then renamed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fedra.errors import ConfigError, DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
"""File formats of plots."""
LONGEST = 128
"""Longest file name in bytes that a temporary name repeats; most file systems allow 255."""
RANDOM_BYTES = 8
NEW = os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""Flags of a temporary file: never open an existing file, never follow a link."""
TEMPORARY = re.compile(rf"(?P<stem>.+)\.[0-9a-f]{{{2 * RANDOM_BYTES}}}\.tmp", re.DOTALL)
_ORPHANS: dict[Path, dict[str, list[Path]]] = {}
"""Temporary files that were there when this process first wrote into a folder, by the file they belong to."""


def write_atomically(path: Path, data: bytes, durable: bool = True, private: bool = False) -> None:
    """Write under a temporary name, then rename, so readers see the old file or the new one and never a part of it.

    Args:
        path: The file; an existing link is replaced, not followed.
        data: The whole content.
        durable: Wait until the data are on the disk; otherwise a power failure may leave a partial file.
        private: Create the file with mode 0600; an existing file keeps its mode and owner.
    """
    with _replacing(path, private) as (_, new), new:
        new.write(data)
        new.flush()
        if durable:
            os.fsync(new.fileno())


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a new, empty file next to `path` that replaces it when the block ends without an error."""
    with _replacing(path, private) as (temporary, new):
        new.close()
        yield temporary


@contextmanager
def _replacing(path: Path, private: bool) -> Iterator[tuple[Path, BinaryIO]]:
    _remove_orphans(path)
    temporary, created = _create(path, private)
    held = _keep_lock(created)
    try:
        with open(created, "wb") as new:
            _copy_access(path, new.fileno())
            yield temporary, new
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        if held is not None:
            os.close(held)


def _create(path: Path, private: bool) -> tuple[Path, int]:
    """Create and lock a temporary file; another process may take it for an orphan in between, so look again."""
    while True:
        temporary = path.with_name(f"{_temporary_stem(path)}.{secrets.token_hex(RANDOM_BYTES)}.tmp")
        created = os.open(temporary, os.O_WRONLY | NEW, 0o600 if private else 0o666)
        if _lock(created) is not False and os.fstat(created).st_nlink:
            return temporary, created
        os.close(created)


def _remove_orphans(path: Path) -> None:
    """Remove temporary files of `path` whose writers were killed before this process first wrote into the folder.

    A folder is listed once, because it may have many files. The system unlocks the file of a process that ends.
    """
    folder = path.parent.absolute()
    if folder not in _ORPHANS:
        found: dict[str, list[Path]] = {}
        for entry in folder.iterdir() if folder.is_dir() else ():
            if name := TEMPORARY.fullmatch(entry.name):
                found.setdefault(name["stem"], []).append(entry)
        _ORPHANS[folder] = found
    for orphan in _ORPHANS[folder].pop(_temporary_stem(path), ()):
        with suppress(OSError):
            opened = os.open(orphan, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            try:
                if _lock(opened):
                    orphan.unlink()
            finally:
                os.close(opened)


if sys.platform == "win32":

    def _lock(file: int) -> bool | None:
        """Windows removes no file that is open, so there is nothing to lock."""
        return None

    def _keep_lock(file: int) -> int | None:
        return None

else:
    import fcntl

    os.register_at_fork(after_in_child=_ORPHANS.clear)

    def _lock(file: int) -> bool | None:
        """Lock an open file; returns False if another process has it, and None if the file system has no locks."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True

    def _keep_lock(file: int) -> int | None:
        """Keep the lock until the file has its name, although its content is closed before."""
        return os.dup(file)


def find_leftovers(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the temporary files of these files of a folder that killed processes left.

    Who holds the lock of the files may remove them.
    """
    stems = {_temporary_stem(Path(name)) for name in names}
    found = ((entry, TEMPORARY.fullmatch(entry.name)) for entry in folder.iterdir())
    return [entry for entry, match in found if match is not None and match["stem"] in stems]


def _copy_access(path: Path, new: int) -> None:
    """Copy the owner and mode of the file at `path`, if it exists, to the open file `new`."""
    try:
        old = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(old.st_mode) or not hasattr(os, "fchown"):
        return
    mode = stat.S_IMODE(old.st_mode)
    current = os.fstat(new)
    if (current.st_uid, current.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(new, old.st_uid, old.st_gid)
        except PermissionError:
            mode &= 0o700  # the new group must not inherit the rights of the old one
    os.fchmod(new, mode)


def write_json(path: Path, content: Mapping[str, object], private: bool = False) -> None:
    """Write JSON, creating the folder; raise on numbers that are not finite. `private` creates it with mode 0600."""
    try:
        text = json.dumps(content, indent=1, allow_nan=False)
    except ValueError:
        raise DataError(
            f"the numbers in '{path}' must be finite, got NaN or infinity: JSON cannot store them"
        ) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (text + "\n").encode(), private=private)


def save_figure(figure: Figure, path: Path | str, private: bool = False) -> None:
    """Save a figure as .svg, .png or .pdf, creating the folder; equal figures give equal bytes.

    With `private`, only the owner can read a new file, because it shows people.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    path = Path(path)
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise ConfigError(f"the name of a plot must end in .svg, .png or .pdf, got '{path}'")
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    for text in figure.findobj(Text):
        text.set_text(as_unicode(text.get_text()))
    buffer = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with rc_context({"svg.hashsalt": "fedra", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=kind, dpi=150, metadata=undated)
    write_atomically(path, buffer.getvalue(), durable=False, private=private)


def as_unicode(name: str) -> str:
    """Return a name with escapes for bytes that are not UTF-8, which Python represents as lone surrogates."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _temporary_stem(path: Path) -> str:
    """Return the file's name, by which leftovers are found, or its hash if the name is too long to extend."""
    name = os.fsencode(path.name)
    return path.name if len(name) <= LONGEST else hashlib.sha256(name).hexdigest()[:32]
