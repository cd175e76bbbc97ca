"""Unpack untrusted tar archives member by member.

Python's `extractall(filter="data")` needs Python 3.11.4, and Debian 12 has 3.11.2. This code creates only folders and
regular files, with checked names and default permissions, and rejects everything else.
"""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from fedra.errors import DataError

LONGEST_NAME = 255
"""Maximum bytes in the name of a file or folder, as on common file systems."""

LONGEST_PATH = 1024
"""Maximum bytes in the path of a member."""


DAMAGED = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError, TypeError)
"""What reading a damaged archive raises; a compressed stream that ends in its header is a TypeError."""


class _Rejected(Exception):
    """A member is rejected, with the reason."""


def unpack_tar(archive: Path, folder: Path, *, limit: int) -> None:
    """Unpack an archive of folders and regular files, compressed or not, into an empty folder.

    Args:
        archive: The file to read.
        folder: An existing empty folder. Nothing is written outside of it.
        limit: Maximum total size of the unpacked files in bytes.

    Raises:
        DataError: The archive is damaged, contains other members than folders and regular files, invalid, absolute,
            escaping or duplicate paths, or more than `limit` bytes. Members before the rejected one have been written.

    Example:
        >>> unpack_tar(Path("set.tar.gz"), Path(tempfile.mkdtemp()), limit=2**30)  # doctest: +SKIP
    """
    try:
        # A stream never seeks back, so a member with a negative size cannot cause an infinite loop.
        with tarfile.open(archive, "r|*") as stream:
            for member in stream:
                limit -= max(0, member.size)
                if limit < 0:
                    raise _Rejected("it unpacks to more bytes than this data set can have")
                _unpack(stream, member, folder)
    except (_Rejected, *DAMAGED) as error:
        # Errors of the operating system, such as a full disk, have an errno; those of a damaged archive do not.
        is_damaged = getattr(error, "errno", None) is None
        advice = "delete it and download it again" if is_damaged else f"check {folder.parent}"
        raise DataError(f"{archive} cannot be unpacked ({error}): {advice}") from None


def _unpack(stream: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    path = folder.joinpath(*_parts(member.name))
    if member.isdir():
        _make_folder(path)
        return
    if not member.isreg() or member.issparse():
        raise _Rejected(f"its member {_shorten(member.name)} is not a regular file or folder")
    content = stream.extractfile(member)
    assert content is not None, "a regular file has content"
    _make_folder(path.parent)
    if path.exists():
        raise _Rejected(f"it contains {_shorten(member.name)} twice")
    with path.open("xb") as file:
        shutil.copyfileobj(content, file)
        if file.tell() != member.size:
            raise _Rejected(f"its member {_shorten(member.name)} is truncated")


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise _Rejected(f"it contains {_shorten(path.name)} as a file and as a folder") from None


def _parts(name: str) -> tuple[str, ...]:
    """Split a member's path into its checked parts."""
    path = PurePosixPath(name)
    if path.is_absolute() or PureWindowsPath(name).drive or PureWindowsPath(name).root:
        raise _Rejected(f"its member {_shorten(name)} has an absolute path")
    if ".." in path.parts:
        raise _Rejected(f"its member {_shorten(name)} has a path outside of the folder")
    if len(name.encode(errors="surrogateescape")) > LONGEST_PATH or not all(map(_is_name, path.parts)):
        raise _Rejected(f"its member {_shorten(name)} has an invalid path")
    return path.parts


def _is_name(part: str) -> bool:
    return part.isprintable() and "\\" not in part and len(part.encode()) <= LONGEST_NAME


def _shorten(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:60]}...")
