"""Downloads of public files over HTTP, with mirrors, resume, checksums and atomic replacement.

Without a known checksum, the size (if known) and the format (by the loader) are checked instead. FEDRA_OFFLINE=1
disables downloads.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedra.console import DownloadProgress
from fedra.errors import DataError

ATTEMPTS = 3
"""Number of attempts per mirror; each one resumes the previous transfer."""
TIMEOUT = 30.0
CHUNK = 1 << 18
SLOWEST, PERIOD = 1000, 30.0
"""Bytes per second below which a transfer is given up, measured over this many seconds."""
LONGEST_REASON = 200
"""Characters of a reason that a server may determine."""

_altered: ContextVar[list[Path] | None] = ContextVar("altered", default=None)


@dataclass(frozen=True)
class RemoteFile:
    """A public file: name, mirrors in order of preference, and known checksums and size."""

    name: str
    urls: tuple[str, ...]
    md5: str | None = None
    sha256: str | None = None
    size: int | None = None


class TransferInterrupted(Exception):
    """A transfer ended early; the next attempt resumes it."""


class SlowTransfer(OSError):
    """A server sends too slowly to wait for it."""


class WrongContent(Exception):
    """A complete file has the wrong size or checksum."""


def offline() -> bool:
    """Return whether the environment variable FEDRA_OFFLINE disables downloads."""
    return os.environ.get("FEDRA_OFFLINE", "").lower() not in ("", "0", "false", "no")


def locate(
    file: RemoteFile, folders: tuple[Path, ...], names: tuple[str, ...] = (), *, timeout: float = TIMEOUT
) -> Path:
    """Find a file by its name or one of `names` in `folders`, or download it to the first folder."""
    for folder in folders:
        for name in (file.name, *names):
            if (folder / name).is_file():
                if name == file.name:
                    _compare(folder / name, file)
                return folder / name
    if offline():
        raise _missing(file, folders, "downloads are disabled (FEDRA_OFFLINE is set)")
    try:
        folders[0].mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _missing(file, folders, f"the folder {folders[0]} cannot be created ({error})") from None
    return _download(file, folders, timeout)


def _missing(file: RemoteFile, folders: tuple[Path, ...], why: str) -> DataError:
    searched = " or ".join(str(folder) for folder in folders)
    source = f"download it from {file.urls[0]}" if file.urls else "get it from its authors"
    return DataError(
        f"the file {file.name} must be in {searched}, but it is missing and {why}: {source} and put it into "
        f"{folders[0]}, or set FEDRA_DATA to your data folder"
    )


def _download(file: RemoteFile, folders: tuple[Path, ...], timeout: float) -> Path:
    target = folders[0] / file.name
    part = target.with_name(target.name + ".part")
    failures: list[str] = []
    for url in file.urls:
        for _ in range(ATTEMPTS):
            fresh = not part.exists()
            try:
                _transfer(url, part, file, timeout)
                _verify(part, file)
                os.replace(part, target)
                return target
            except TransferInterrupted as error:
                failures.append(f"{url}: {error}")
            except WrongContent as error:
                part.unlink()
                failures.append(f"{url}: {error}")
                if fresh:
                    break
            except (OSError, http.client.HTTPException, ValueError) as error:  # a redirect may lead to garbage
                reason = str(getattr(error, "reason", None) or error).partition("\n")[0][:LONGEST_REASON]
                failures.append(f"{url}: {reason}")
                break
    raise _missing(file, folders, f"the download failed ({'; '.join(dict.fromkeys(failures))})")


def _transfer(url: str, part: Path, file: RemoteFile, timeout: float) -> None:
    """Append the missing bytes of `url` to `part`, or start over if the server does not support resuming."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "fedra", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            if error.headers.get("Content-Range") == f"bytes */{start}":
                return  # the file is already complete
            part.unlink()
            raise TransferInterrupted("the partial file of an earlier download did not match") from None
    with response:
        resumes = str(response.headers.get("Content-Range")).startswith(f"bytes {start}-")
        _append(response, part, start if response.status == http.client.PARTIAL_CONTENT and resumes else 0, file)


def _append(response: http.client.HTTPResponse, part: Path, start: int, file: RemoteFile) -> None:
    length = response.headers.get("Content-Length", "")
    total = start + int(length) if length.isascii() and length.isdecimal() and len(length) < 20 else file.size
    received, pace = start, Pace()
    with part.open("ab" if start else "wb") as stream, DownloadProgress(file.name, total, start) as bar:
        while block := _read_chunk(response):
            stream.write(block)
            received += len(block)
            bar.advance(len(block))
            if file.size is not None and received > file.size:
                raise WrongContent(f"it must have {file.size} bytes, got more")
            pace.check(received - start)
    if total is not None and received < total:
        raise TransferInterrupted(f"the transfer ended after {received} of {total} bytes")


class Pace:
    """Gives up on a transfer that is slower than `SLOWEST` over `PERIOD` seconds: it would take days."""

    def __init__(self) -> None:
        self._time, self._received = time.monotonic(), 0

    def check(self, received: int) -> None:
        """Raise if too little arrived since the last period began."""
        passed = time.monotonic() - self._time
        if passed < PERIOD:
            return
        if received - self._received < SLOWEST * passed:
            raise SlowTransfer(f"it sends less than {SLOWEST / 1000:g} kB per second")
        self._time, self._received = time.monotonic(), received


def _read_chunk(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK)  # what has arrived, so that a slow server is noticed
    except (OSError, http.client.HTTPException) as error:
        raise TransferInterrupted(f"the connection was lost ({error})") from None


@contextmanager
def noting_altered() -> Iterator[list[Path]]:
    """Collect the files inside the block that have the name of an official file but another content."""
    found: list[Path] = []
    before = _altered.set(found)
    try:
        yield found
    finally:
        _altered.reset(before)


def _compare(path: Path, file: RemoteFile) -> None:
    """Note a local file whose checksum is not that of the official file."""
    noted, status = _altered.get(), path.stat()
    if noted is not None and not _is_official(path, file, status.st_size, status.st_mtime_ns):
        noted.append(path)


@cache
def _is_official(path: Path, file: RemoteFile, size: int, time: int) -> bool:
    try:
        _verify(path, file)
    except WrongContent:
        return False
    return True


def _verify(part: Path, file: RemoteFile) -> None:
    size = part.stat().st_size
    if file.size is not None and size != file.size:
        raise WrongContent(f"it must have {file.size} bytes, got {size}")
    for method, expected in (("md5", file.md5), ("sha256", file.sha256)):
        if expected is None:
            continue
        with part.open("rb") as stream:
            found = hashlib.file_digest(stream, method).hexdigest()
        if found != expected:
            raise WrongContent(f"its {method} must be {expected}, got {found}")
