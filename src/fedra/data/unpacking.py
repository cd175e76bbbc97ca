"""Tar archives from elsewhere, unpacked member by member: nothing in one is trusted.

Python's own `extractall(filter="data")` came with 3.11.4, and Debian 12 has 3.11.2. This needs no filter: it makes
folders and plain files under names it has checked, with the modes of new files, and refuses everything else.
"""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from fedra.errors import DataError

LONGEST_NAME = 255
"""Bytes in the name of a file or folder, as many as common file systems hold."""

LONGEST_PATH = 1024
"""Bytes in a member's whole path."""


class _Refused(Exception):
    """Why a member is not unpacked."""


def unpack_tar(archive: Path, folder: Path, *, limit: int) -> None:
    """Unpack an archive of folders and plain files, compressed or not, into an empty folder.

    Args:
        archive: the file to read.
        folder: an existing empty folder; nothing is written outside it.
        limit: how many bytes the unpacked files may hold together.

    Raises:
        DataError: the archive is damaged, holds anything but folders and plain files, a path that is absolute, leaves
            the folder or cannot be a file's name, the same path twice, or more than `limit` bytes. Members before
            the one that is refused have been written by then.

    Example:
        >>> unpack_tar(Path("set.tar.gz"), Path(tempfile.mkdtemp()), limit=2**30)  # doctest: +SKIP
    """
    try:
        # As a stream, which never goes back: a member whose size is negative cannot be read again without end.
        with tarfile.open(archive, "r|*") as stream:
            for member in stream:
                limit -= max(0, member.size)
                if limit < 0:
                    raise _Refused("it unpacks to more bytes than such a set can have")
                _unpack(stream, member, folder)
    except (_Refused, tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        # The system numbers its errors (a full disk); those of a damaged archive have no number.
        advice = "delete it and fetch it again" if getattr(error, "errno", None) is None else f"look at {folder.parent}"
        raise DataError(f"{archive} cannot be unpacked ({error}): {advice}") from None


def _unpack(stream: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    place = folder.joinpath(*_parts(member.name))
    if member.isdir():
        _make_folder(place)
        return
    if not member.isreg() or member.issparse():
        raise _Refused(f"its member {_shown(member.name)} is not a plain file or folder")
    content = stream.extractfile(member)
    assert content is not None, "a plain file has content"
    _make_folder(place.parent)
    if place.exists():
        raise _Refused(f"it holds {_shown(member.name)} twice")
    with place.open("xb") as file:
        shutil.copyfileobj(content, file)
        if file.tell() != member.size:
            raise _Refused(f"its member {_shown(member.name)} is cut short")


def _make_folder(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise _Refused(f"it holds {_shown(place.name)} as a file and as a folder") from None


def _parts(name: str) -> tuple[str, ...]:
    """The folders and the name of a member's path, checked one by one."""
    path = PurePosixPath(name)
    if path.is_absolute() or PureWindowsPath(name).drive or PureWindowsPath(name).root:
        raise _Refused(f"its member {_shown(name)} has an absolute path")
    if ".." in path.parts:
        raise _Refused(f"its member {_shown(name)} leaves the folder")
    if len(name.encode(errors="surrogateescape")) > LONGEST_PATH or not all(map(_is_name, path.parts)):
        raise _Refused(f"its member {_shown(name)} has a path that cannot be used")
    return path.parts


def _is_name(part: str) -> bool:
    return part.isprintable() and "\\" not in part and len(part.encode()) <= LONGEST_NAME


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:60]}...")
