"""Public files by HTTP: several mirrors, resumed when broken off, checked, and put in place in one step.

A file whose checksum is not known for certain has none: its size, where known, and its format (by the
loader) are checked instead. FEDRA_OFFLINE=1 forbids all of it.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from fedra.console import DownloadProgress
from fedra.errors import DataError

ATTEMPTS = 3
"""How often a mirror is asked again, each time for what is still missing, before the next one is."""
TIMEOUT = 30.0
CHUNK = 1 << 18


@dataclass(frozen=True)
class RemoteFile:
    """A public file: its name, its mirrors in order, and what is known for certain of its content."""

    name: str
    urls: tuple[str, ...]
    md5: str | None = None
    sha256: str | None = None
    size: int | None = None


class BrokenOff(Exception):
    """A transfer that ended early; the next attempt asks for the rest."""


class WrongContent(Exception):
    """A whole file that is not the one we know."""


def offline() -> bool:
    """Whether the environment variable FEDRA_OFFLINE forbids downloading."""
    return os.environ.get("FEDRA_OFFLINE", "").lower() not in ("", "0", "false", "no")


def locate(
    file: RemoteFile, folders: tuple[Path, ...], names: tuple[str, ...] = (), *, timeout: float = TIMEOUT
) -> Path:
    """The file, under its own name or one of `names`, in the first folder that has it; else downloaded.

    A download goes into the first folder.
    """
    for folder in folders:
        for name in (file.name, *names):
            if (folder / name).is_file():
                return folder / name
    if offline():
        raise _missing(file, folders, "downloading is off (FEDRA_OFFLINE is set)")
    try:
        folders[0].mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _missing(file, folders, f"the folder {folders[0]} cannot be made ({error})") from None
    return _download(file, folders, timeout)


def _missing(file: RemoteFile, folders: tuple[Path, ...], why: str) -> DataError:
    looked = " and ".join(str(folder) for folder in folders)
    source = f"fetch it from {file.urls[0]}" if file.urls else "get it from its authors"
    return DataError(
        f"the file {file.name} is not in {looked} and {why}: {source} on a machine with a network and put it "
        f"into {folders[0]}, or set FEDRA_DATA to the folder that holds your data"
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
            except BrokenOff as error:
                failures.append(f"{url}: {error}")
            except WrongContent as error:
                part.unlink()
                failures.append(f"{url}: {error}")
                if fresh:
                    break
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{url}: {getattr(error, 'reason', None) or error}")
                break
    raise _missing(file, folders, f"no mirror gave it ({'; '.join(dict.fromkeys(failures))})")


def _transfer(url: str, part: Path, file: RemoteFile, timeout: float) -> None:
    """Append to `part` what it lacks of `url`, or write it anew where the server cannot resume."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "fedra", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            if error.headers.get("Content-Range") == f"bytes */{start}":
                return  # an earlier transfer had already brought all of it
            part.unlink()
            raise BrokenOff("the part left by an earlier download did not fit") from None
    with answer:
        resumes = str(answer.headers.get("Content-Range")).startswith(f"bytes {start}-")
        _append(answer, part, start if answer.status == http.client.PARTIAL_CONTENT and resumes else 0, file)


def _append(answer: http.client.HTTPResponse, part: Path, start: int, file: RemoteFile) -> None:
    length = answer.headers.get("Content-Length")
    total = start + int(length) if length else file.size
    received = start
    with part.open("ab" if start else "wb") as stream, DownloadProgress(file.name, total, start) as bar:
        while block := _block(answer):
            stream.write(block)
            received += len(block)
            bar.advance(len(block))
    if total is not None and received < total:
        raise BrokenOff(f"the transfer ended after {received} of {total} bytes")


def _block(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOff(f"the connection was lost ({error})") from None


def _verify(part: Path, file: RemoteFile) -> None:
    size = part.stat().st_size
    if file.size is not None and size != file.size:
        raise WrongContent(f"it has {size} bytes instead of {file.size}")
    for method, expected in (("md5", file.md5), ("sha256", file.sha256)):
        if expected is None:
            continue
        with part.open("rb") as stream:
            found = hashlib.file_digest(stream, method).hexdigest()
        if found != expected:
            raise WrongContent(f"its {method} is {found} instead of {expected}")
