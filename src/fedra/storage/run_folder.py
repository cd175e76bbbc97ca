"""A run's folder.

config.toml  metrics.jsonl  clients.jsonl  summary.json  model.safetensors  checkpoint/  curves.svg
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from fedra.config import reading as configuration
from fedra.config.schema import Config
from fedra.errors import ConfigError, RunError
from fedra.locking import hold_lock
from fedra.storage.checkpoint import Checkpoint
from fedra.storage.claims import claim, claimed, open_list, remove_claimed
from fedra.writing import write_atomically

FIXED = ("config.toml", "metrics.jsonl", "clients.jsonl", "summary.json", "model.safetensors", "curves.svg")
"""Files that every run writes."""

LOCK = ".lock"
"""Exists while a run is active; not part of its record."""


class RunFolder:
    """Reads and writes one run's folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.checkpoint = Checkpoint(self.path / "checkpoint")
        self._open: dict[str, TextIO] = {}

    @property
    def has_run(self) -> bool:
        """Whether the folder holds a run, finished or not."""
        return (self.path / "config.toml").exists()

    @property
    def finished(self) -> bool:
        """Whether the run has ended, successfully or not."""
        return (self.path / "summary.json").exists()

    def check_available(self) -> None:
        """Raise if the folder already has a run, or files that fedra did not write."""
        if not self.path.is_dir() or claimed(self.path) is None:
            self._refuse_foreign()
        elif (self.path / "config.toml").exists():
            started = f"was started and can be resumed (fedra run --resume {self.path})"
            status = self.ending() if self.finished else started
            raise ConfigError(
                f"'{self.path}' already contains a run that {status}: choose another folder, or replace the run with "
                "--force (force=True)"
            )

    def _refuse_foreign(self) -> None:
        """Raise unless the folder is empty or a run's, so no other files are replaced."""
        if self.path.is_file():
            raise ConfigError(f"the output folder must be a folder, got the file '{self.path}': choose another name")
        names = sorted({path.name for path in self.path.glob("*")} - {LOCK})
        if names:
            raise ConfigError(
                f"the output folder must be empty or contain a run, got '{self.path}' with '{names[0]}': choose "
                "another folder"
            )

    @contextmanager
    def create(self, config: Config, force: bool) -> Iterator[None]:
        """Create the folder for a new run and lock it inside the block; files of an older run are removed."""
        self._make()
        with self._lock():
            if claimed(self.path) is None:
                self._refuse_foreign()
            elif not force:
                self.check_available()  # again: another process may have started a run since the first check
            open_list(self.path)
            self._clear()
            self.write("config.toml", configuration.write(config).encode())
            yield

    @contextmanager
    def open_to_resume(self) -> Iterator[Config]:
        """The configuration of the run to resume; the folder is locked inside the block."""
        self.config()  # raises before the lock file is written if the folder has no run
        with self._lock():
            if self.finished:
                raise ConfigError(f"the run in '{self.path}' {self.ending()}: nothing is left to resume")
            yield self.config()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        busy = f"'{self.path}' is in use by another process: wait for it, stop it, or choose another folder"
        with hold_lock(self.path / LOCK, busy):
            yield

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the output folder '{self.path}' cannot be created ({error.strerror}): choose another folder"
            ) from None

    def _clear(self) -> None:
        """Remove the files of an older run, and nothing else."""
        self.checkpoint.clear()
        remove_claimed(self.path)
        for name in FIXED:
            if (self.path / name).exists():
                raise ConfigError(
                    f"'{self.path / name}' was not written by fedra and would be replaced: move it, or choose another "
                    "folder"
                )

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the run's record."""
        claim(self.path, name)
        write_atomically(self.path / name, data)

    def claim(self, *names: str) -> None:
        """Record that these files, written by other code, belong to the run."""
        claim(self.path, *names)

    def config(self) -> Config:
        """The configuration of the run."""
        if not (self.path / "config.toml").exists():
            raise ConfigError(
                f"the folder must contain a run, got '{self.path}' without a config.toml: give the folder of --out"
            )
        return configuration.read(self.path / "config.toml")

    def ending(self) -> str:
        """How the run ended, as a verb: "is finished", "diverged in round 26"."""
        return self.failure() or "is finished"

    def failure(self) -> str | None:
        """How the run failed, as a verb; None if it did not."""
        summary = self.summary() if self.finished else {}
        return str(summary.get("ending", "failed")) if summary.get("status") == "failed" else None

    def append(self, name: str, lines: Iterable[dict[str, Any]]) -> None:
        """Add lines to a .jsonl file."""
        if name not in self._open:
            self.claim(name)
            self._open[name] = open(self.path / name, "a", encoding="utf-8")  # noqa: SIM115  (closed in close)
        file = self._open[name]
        file.writelines(_strict(line) + "\n" for line in lines)
        file.flush()

    def truncate(self, rounds: int) -> None:
        """Remove lines of rounds after the checkpoint, and a half-written last line."""
        self.close()
        for name in ("metrics.jsonl", "clients.jsonl"):
            if (self.path / name).exists():
                lines = [line for line in _lines(self.path / name) if line["round"] <= rounds]
                self.write(name, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        return _lines(path) if path.exists() else []

    def clients(self) -> list[dict[str, Any]]:
        """The lines of clients.jsonl."""
        path = self.path / "clients.jsonl"
        return _lines(path) if path.exists() else []

    def summary(self) -> dict[str, Any]:
        """The finished run's summary."""
        try:
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"the run in '{self.path}' is not finished: resume it with --resume {self.path}") from None
        except ValueError as error:
            raise RunError(f"'{self.path / 'summary.json'}' is damaged ({error}): start a new run") from None
        return summary

    def write_summary(self, summary: dict[str, Any]) -> None:
        self.write("summary.json", (json.dumps(summary, indent=2) + "\n").encode())

    def close(self) -> None:
        self.checkpoint.close()
        for file in self._open.values():
            file.close()
        self._open = {}


def _strict(line: dict[str, Any]) -> str:
    """A line as strict JSON, with null for numbers that are not finite."""
    infinite = {name for name, value in line.items() if isinstance(value, float) and not math.isfinite(value)}
    return json.dumps({name: None if name in infinite else value for name, value in line.items()}, allow_nan=False)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a .jsonl file; a last line cut off by a killed process is ignored."""
    lines: list[dict[str, Any]] = []
    for text in path.read_bytes().splitlines(keepends=True):
        if text.endswith(b"\n"):
            try:
                line = json.loads(text)
                line["round"] + 0
            except (ValueError, TypeError, KeyError):
                raise RunError(f"'{path}' is damaged in line {len(lines) + 1}: start a new run") from None
            lines.append(line)
    return lines
