"""Reads the files of a run's folder for display: nothing is imported, no link is followed out of the folder.

A folder may come from someone else and may be damaged, so a file that cannot be read is a sentence, not an error.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

LARGEST = 256 * 2**20
"""Largest file in bytes that is read."""

TAIL = 2**16
"""Bytes at the end of a .jsonl file that a list of runs reads."""

STATUS, PLAN = "status.json", "federation.toml"
"""What a coordinator does now, and what it was asked to do."""


@dataclass
class RunFiles:
    """Reads files of one run's folder and collects a sentence for each one that is damaged.

    `enclosed` says that the folder around it must not be read either.
    """

    folder: Path
    problems: list[str] = field(default_factory=list)
    enclosed: bool = False

    def names(self, pattern: str) -> list[str]:
        """Return the names of files in the folder that match, in order."""
        return sorted(path.name for path in self.folder.glob(pattern))

    def read_bytes(self, name: str, largest: int = LARGEST) -> bytes | None:
        """Return the content of a file of the folder, or None if there is none or it must not be read."""
        try:
            size = self._measure(name)
            if size is None:
                return None
            if size > largest:
                self._report(name, f"is larger than {largest // 2**20} MB and was not read")
                return None
            return (self.folder / name).read_bytes()
        except OSError as error:
            self._report(name, f"cannot be read ({error.strerror})")
            return None

    def _measure(self, name: str) -> int | None:
        """Return the size of a file, or None if there is none, it is a link out of the folder, or not a file."""
        path = self.folder / name
        if Path(name).name != name:
            self._report(name, "is not in the folder and was not read")
            return None
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(found.st_mode):
            if path.resolve().parent != self.folder.resolve():
                self._report(name, "leads out of the folder and was not read")
                return None
            found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):  # a pipe would never end
            self._report(name, "is not a file and was not read")
            return None
        return found.st_size

    def read_table(self, name: str) -> dict[str, Any] | None:
        """Return the table of a TOML or JSON file, or None if there is none or it is damaged."""
        data = self.read_bytes(name)
        if data is None:
            return None
        try:
            text = data.decode()
            found = tomllib.loads(text) if name.endswith(".toml") else json.loads(text)
        except (ValueError, RecursionError) as error:
            self._report(name, f"is damaged ({error})")
            return None
        if not isinstance(found, dict):
            self._report(name, "is damaged (it must hold a table)")
            return None
        return found

    def read_status(self) -> dict[str, Any]:
        """Return status.json of a federation, which a coordinator writes next to its plan and around its run."""
        above = self.folder.parent
        if not self.enclosed and (above / PLAN).is_file() and not (self.folder / STATUS).exists():
            outer = RunFiles(above)
            found = outer.read_table(STATUS)
            self.problems += [f"../{sentence}" for sentence in outer.problems if f"../{sentence}" not in self.problems]
            return found or {}
        return self.read_table(STATUS) or {}

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        """Return the complete lines of a .jsonl file up to the first damaged one.

        A last line without an end is still being written, or was cut off by a killed process; it is left out.
        """
        found: list[dict[str, Any]] = []
        for line in (self.read_bytes(name) or b"").splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            try:
                item = json.loads(line)
            except (ValueError, RecursionError):
                item = None
            if not isinstance(item, dict):
                self._report(name, f"is damaged in line {len(found) + 1}; what follows is not shown")
                break
            found.append(item)
        return found

    def read_last_lines(self, name: str, size: int = TAIL) -> list[dict[str, Any]]:
        """Return the last complete lines of a .jsonl file, without reading all of a long one."""
        try:
            whole = self._measure(name)
            if whole is None:
                return []
            with (self.folder / name).open("rb") as file:
                file.seek(max(0, whole - size))
                lines = file.read(size).splitlines(keepends=True)
        except OSError as error:
            self._report(name, f"cannot be read ({error.strerror})")
            return []
        found = []
        for line in lines[1:] if whole > size else lines:
            try:
                item = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                item = None
            found += [item] if isinstance(item, dict) else []
        return found

    def _report(self, name: str, what: str) -> None:
        if (sentence := f"{name} {what}.") not in self.problems:  # a file may be read for several sections
            self.problems.append(sentence)


def number(value: object) -> float | None:
    """Return a finite number as it is, and None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.float_info.max else None  # an integer may be larger, and NaN is not smaller


def table_of(value: object) -> dict[str, Any]:
    """Return a table as it is, and an empty one for everything else."""
    return dict(value) if isinstance(value, Mapping) else {}


def shorten_paths(value: Any) -> Any:
    """Shorten absolute paths to their last component, because cards and pages may be sent to others."""
    if isinstance(value, dict):
        return {key: shorten_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shorten_paths(item) for item in value]
    return PurePath(value).name if isinstance(value, str) and value.startswith(("/", "~")) else value
