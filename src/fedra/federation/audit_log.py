"""The log of everything that left: one line per message, each with the hash of the line before it.

A line that is changed, removed or inserted later breaks the chain at that place. The log holds names, shapes and sizes
of tensors, never their values. Coordinator and site write one each; a message has the same digest in both.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fedra.errors import DataError

START = "0" * 64
"""What the first line has in place of the hash of a line before it."""
CHAIN = "before"
HIDDEN = (CHAIN, "time", "event", "tensors", "bytes", "words")
"""Keys that the readable form shows otherwise."""


class LogLine(BaseModel):
    """A line of the log as it is shown; other keys are the event's own."""

    model_config = ConfigDict(extra="allow", strict=True)
    before: str
    time: str
    event: str
    tensors: list[tuple[str, list[int], str, int]] = []
    bytes: Annotated[int, Field(ge=0, le=10**18)] = 0
    words: dict[str, Any] = {}


class AuditLog:
    """A log file that only grows; one process writes it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._last: str | None = None
        self._late: list[tuple[str, Mapping[str, Any]]] = []

    def record(self, event: str, **details: Any) -> None:
        """Append one line and wait until it is on the disk."""
        with self._lock:
            if self._last is None:
                self._last = self._open()
            while self._late:
                self._append(*self._late[0])
                del self._late[0]
            self._append(event, details)

    def record_later(self, event: str, **details: Any) -> None:
        """Remember a line that cannot be written now, because the disk is full; it is written before the next one."""
        with self._lock:
            self._late.append((event, {"happened": _now(), **details}))

    def record_tensors(self, event: str, tensors: Mapping[str, Tensor], **details: Any) -> None:
        """Append one line about tensors that leave: the name, shape, type and bytes of each."""
        sent = [
            [name, list(value.shape), str(value.dtype).removeprefix("torch."), value.numel() * value.element_size()]
            for name, value in tensors.items()
        ]
        self.record(event, **details, tensors=sent, bytes=sum(one[3] for one in sent))

    def _open(self) -> str:
        """Return the hash of the last line; cut off a line that a killed process left incomplete."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            return START
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        last = _hash(lines[-1]) if lines else START
        if whole < len(content):
            os.truncate(self.path, whole)
            self._last = last
            self._append("cut", {"reason": "the last line was incomplete", "bytes": len(content) - whole})
            return self._last
        return last

    def _append(self, event: str, details: Mapping[str, Any]) -> None:
        """Append a line whole or not at all: half a line on a full disk would break the chain."""
        about = {CHAIN: self._last, "time": _now(), "event": event, **details}
        line = json.dumps(about, allow_nan=False).encode()
        opened = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        before = os.fstat(opened).st_size
        try:
            if os.write(opened, line + b"\n") <= len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(opened)
        except OSError:
            os.ftruncate(opened, before)
            raise
        finally:
            os.close(opened)
        self._last = _hash(line)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def verify_log(path: Path) -> tuple[int, str]:
    """Check the chain of a log.

    Args:
        path: The log file.

    Returns:
        The number of lines, and the hash of the last one. Keep that hash elsewhere to notice a log that was cut short.
    """
    expected, count = START, 0
    for count, line in enumerate(_lines(path), 1):
        found = _parse(path, count, line).get(CHAIN)
        if found != expected:
            raise DataError(
                f"'{path}' must be unchanged, got a break before line {count}: a line at or before it was changed, "
                "removed or inserted after it was written"
            )
        expected = _hash(line)
    return count, expected


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log as tables, without checking its chain."""
    return [_parse(path, number, line) for number, line in enumerate(_lines(path), 1)]


def format_log(entries: Iterable[Mapping[str, Any]], *, tensors: bool = False) -> Iterator[str]:
    """Format the lines of a log for a person to read; `tensors` lists every tensor and every number that left."""
    for entry in entries:
        shown = {key: value for key, value in entry.items() if key not in HIDDEN}
        text = "  ".join(f"{key} {_format_value(value)}" for key, value in shown.items())
        sent = entry.get("tensors", [])
        size = f"{len(sent)} tensors, {entry.get('bytes', 0) / 1e6:,.3f} MB  " if "tensors" in entry else ""
        yield f"{entry['time'][:19].replace('T', ' ')}  {entry['event']:<10} {size}{text}".rstrip()
        for name, shape, kind, count in sent if tensors else ():
            yield f"    {name}  {' x '.join(map(str, shape)) or 'a number'}  {kind}  {count:,} bytes"
        for key, value in entry.get("words", {}).items() if tensors else ():
            yield f"    {key}  {_format_value(value)}"


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_format_value(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "; ".join(map(_format_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _lines(path: Path) -> list[bytes]:
    if not path.is_file():
        raise DataError(f"the log '{path}' must exist, got no such file: nothing was sent yet, or it was moved")
    return path.read_bytes().splitlines()


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return LogLine.model_validate_json(line).model_dump(mode="json", exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        raise DataError(
            f"line {number} of '{path}' must be a line of the log, got something else"
            f"{f' at {where!r}' if where else ''}: it was changed"
        ) from None


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
