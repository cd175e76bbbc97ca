"""Files that appear whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fedra.errors import ConfigError, DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png")
"""What pictures can be written as."""
LONGEST = 128
"""Bytes of the longest file name that a temporary name repeats; most file systems end at 255."""
RANDOM_BYTES = 8
NEW = os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""How a temporary file is opened: never one that exists, never through a link that somebody put there."""


def write_atomically(path: Path, data: bytes, lasting: bool = True, private: bool = False) -> None:
    """Write under a temporary name, then rename: readers see the old file or the new one, never a part.

    Args:
        path: The file. A link there is replaced, not followed.
        data: All of its content.
        lasting: Wait until the disk has it; otherwise a power cut may leave a part.
        private: Create the file with mode 0600. A file that exists keeps its mode and owner in any case.
    """
    with _replacing(path, private) as (_, new), new:
        new.write(data)
        new.flush()
        if lasting:
            os.fsync(new.fileno())


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A new, empty file under an unpredictable name beside `path`, which takes its place when the block ends well."""
    with _replacing(path, private) as (temporary, new):
        new.close()
        yield temporary


@contextmanager
def _replacing(path: Path, private: bool) -> Iterator[tuple[Path, BinaryIO]]:
    temporary = path.with_name(f"{_short(path)}.{secrets.token_hex(RANDOM_BYTES)}.tmp")
    created = os.open(temporary, os.O_WRONLY | NEW, 0o600 if private else 0o666)
    try:
        with open(created, "wb") as new:
            _keep_access(path, new.fileno())
            yield temporary, new
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def leftovers(path: Path) -> list[Path]:
    """Temporary files of `path` that a killed process left; who holds the file's lock may remove them."""
    ours = re.compile(rf"{re.escape(_short(path))}\.[0-9a-f]{{{2 * RANDOM_BYTES}}}\.tmp")
    return [entry for entry in path.parent.iterdir() if ours.fullmatch(entry.name)]


def _keep_access(path: Path, new: int) -> None:
    """Give the open file `new` the owner and mode of the file at `path`, if there is one."""
    try:
        old = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(old.st_mode) or not hasattr(os, "fchown"):
        return
    mode = stat.S_IMODE(old.st_mode)
    mine = os.fstat(new)
    if (mine.st_uid, mine.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(new, old.st_uid, old.st_gid)
        except PermissionError:
            mode &= 0o700  # rights of the old group must not pass to another one
    os.fchmod(new, mode)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write JSON, making the folder; a number that is not finite is refused."""
    try:
        text = json.dumps(content, indent=1, allow_nan=False)
    except ValueError:
        raise DataError(f"a number for '{path}' is NaN or infinite: JSON can hold finite numbers only") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (text + "\n").encode())


def save_figure(figure: Figure, path: Path | str) -> None:
    """Write a picture, .svg or .png, making its folder; the same picture gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path = Path(path)
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise ConfigError(f"a picture cannot be drawn into '{path}': end its name with .svg or .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    drawn = io.BytesIO()
    with rc_context({"svg.hashsalt": "fedra"}):
        figure.savefig(drawn, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, drawn.getvalue(), lasting=False)


def _short(path: Path) -> str:
    """A name that leaves room for an ending: the file's own, by which leftovers are found, or its hash."""
    name = os.fsencode(path.name)
    return path.name if len(name) <= LONGEST else hashlib.sha256(name).hexdigest()[:32]
