"""A run's folder.

config.toml  data.json  metrics.jsonl  clients.jsonl  summary.json  model.safetensors  checkpoint/  curves.svg
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from fedra.config import reading as configuration
from fedra.config.schema import OBJECT, Config
from fedra.errors import ConfigError, FedraError, RunError
from fedra.file_reading import LARGE, SMALL, read_file
from fedra.locking import hold_lock
from fedra.storage.checkpoint import Checkpoint
from fedra.storage.claims import claim, claimed, open_list, remove_claimed, remove_leftovers
from fedra.storage.run_records import LINES, SummaryRecord, parse_record
from fedra.storage.state import State
from fedra.writing import write_atomically

FIXED = (
    "config.toml",
    "data.json",
    "metrics.jsonl",
    "clients.jsonl",
    "summary.json",
    "model.safetensors",
    "curves.svg",
)
"""Files that every run writes."""

INTERIM = "interim.json"
"""Summary of an interrupted run, until it is finished."""

METRICS = "metrics.jsonl"
"""The record of the rounds."""

LOCK = ".lock"
"""Exists while a run is active; not part of its record."""

PATIENCE = 0.2
"""Seconds to wait for the lock, longer than `is_held` has it when it looks whether a run is active."""


class RunFolder:
    """Reads and writes one run's folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.checkpoint = Checkpoint(self.path / "checkpoint")
        self._open: dict[str, TextIO] = {}
        self._digest = hashlib.sha256()

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
            started = f"was started and can be resumed ({self.how_to_resume()})"
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
            remove_leftovers(self.path)
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
            remove_leftovers(self.path)
            yield self.config()

    @contextmanager
    def open_to_change(self) -> Iterator[Config]:
        """The configuration of the run, finished or not; the folder is locked inside the block."""
        self.config()  # raises before the lock file is written if the folder has no run
        with self._lock():
            remove_leftovers(self.path)
            yield self.config()

    def tidy(self) -> None:
        """Remove what a process left that was killed after the end of the run: its lock, and what it was writing.

        A run that is not finished is tidied when it is resumed or started again.
        """
        if self.finished and (self.path / LOCK).exists():
            with suppress(RunError), self.open_to_change():  # another process may have it
                pass

    def reopen(self, config: Config) -> None:
        """Give the run another configuration, and take back that it is finished."""
        self.write("config.toml", configuration.write(config).encode())
        (self.path / "summary.json").unlink(missing_ok=True)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        busy = f"'{self.path}' is in use by another process: wait for it, stop it, or choose another folder"
        with hold_lock(self.path / LOCK, busy, patience=PATIENCE):
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
        if not (self.path / "config.toml").is_file():
            raise ConfigError(
                f"the folder must contain a run, got '{self.path}' without a config.toml: give a run's output folder"
            )
        return configuration.read(self.path / "config.toml")

    def how_to_resume(self) -> str:
        """What continues the run: a command, or the call again if the run is of Python objects."""
        try:
            config = self.config()
        except FedraError:
            own = False
        else:
            own = OBJECT in (config.algorithm.name, config.model.name, config.data.name)
        return f"the same call with out='{self.path}' and resume=True" if own else f"fedra run --resume {self.path}"

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
        text = "".join(_strict(line) + "\n" for line in lines)
        if name == METRICS:
            self._digest.update(text.encode())
        self._open[name].write(text)
        self._open[name].flush()

    def save(self, state: State) -> None:
        """Start writing a checkpoint, after the lines of its rounds are on the disk."""
        for file in self._open.values():
            os.fsync(file.fileno())
        self.checkpoint.save(state, self._digest.hexdigest())

    def truncate(self, rounds: int) -> str | None:
        """Make the record agree with a checkpoint after `rounds` rounds; returns a warning if it lost or changed lines.

        Lines of later rounds, repeated lines and a half-written last line are removed.
        """
        self.close()
        for name in LINES:
            if (self.path / name).exists():
                lines = [line for line in _lines(self.path / name) if line["round"] <= rounds]
                lines = list({_identity(name, line): line for line in lines}.values())
                text = "".join(json.dumps(line) + "\n" for line in lines).encode()
                self.write(name, text)
                if name == METRICS:
                    self._digest = hashlib.sha256(text)
        missing = sorted(set(range(1, rounds + 1)) - {line["round"] for line in self.metrics()})
        if missing:
            return _describe_missing(missing)
        written = self.checkpoint.record_digest() if rounds else None
        if written in (None, self._digest.hexdigest()):
            return None
        return (
            "metrics.jsonl is not as this run wrote it: the model is not affected, but curves, best values and sums in "
            f"summary.json take the changed numbers of rounds 1 to {rounds}"
        )

    def data_digests(self) -> dict[str, str] | None:
        """The digests of the data that the run was started with; None if it has none."""
        path = self.path / "data.json"
        if not path.exists():
            return None
        try:
            digests = json.loads(read_file(path, LARGE))["digests"]
            return {str(name): str(digest) for name, digest in digests.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise RunError(f"'{path}' is damaged: start a new run, or remove it to resume without a check") from None

    def write_data_digests(self, digests: Mapping[str, str]) -> None:
        """Record the digests of the data."""
        self.write("data.json", (json.dumps({"digests": dict(digests)}, indent=2) + "\n").encode())

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        return _lines(path) if path.exists() else []

    def clients(self) -> list[dict[str, Any]]:
        """The lines of clients.jsonl."""
        path = self.path / "clients.jsonl"
        return _lines(path) if path.exists() else []

    def summary(self, interim: bool = False) -> dict[str, Any]:
        """The finished run's summary; with `interim`, also that of an interrupted run."""
        name = INTERIM if interim and not self.finished and (self.path / INTERIM).exists() else "summary.json"
        try:
            return parse_record(SummaryRecord, read_file(self.path / name, SMALL))
        except FileNotFoundError:
            raise RunError(
                f"the run in '{self.path}' is not finished: continue it with {self.how_to_resume()}"
            ) from None
        except ValueError as error:
            raise RunError(f"'{self.path / name}' is damaged ({error}): start a new run") from None

    def write_interim(self, summary: dict[str, Any]) -> None:
        """Write the summary of an interrupted run."""
        self.write(INTERIM, (json.dumps(summary, indent=2) + "\n").encode())

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the summary of a run that has ended."""
        self.write("summary.json", (json.dumps(summary, indent=2) + "\n").encode())
        (self.path / INTERIM).unlink(missing_ok=True)

    def close(self) -> None:
        self.checkpoint.close()
        for file in self._open.values():
            file.close()
        self._open = {}


def _strict(line: dict[str, Any]) -> str:
    """A line as strict JSON, with null for numbers that are not finite."""
    infinite = {name for name, value in line.items() if isinstance(value, float) and not math.isfinite(value)}
    return json.dumps({name: None if name in infinite else value for name, value in line.items()}, allow_nan=False)


def _identity(name: str, line: dict[str, Any]) -> tuple[Any, ...] | str:
    """What only one line of a file can have; lines of other files are repeated if they are equal."""
    if name == "metrics.jsonl":
        return (line["round"],)
    return json.dumps(line, sort_keys=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a .jsonl file; a last line cut off by a killed process is ignored."""
    lines: list[dict[str, Any]] = []
    for text in read_file(path, LARGE).splitlines(keepends=True):
        if text.endswith(b"\n"):
            try:
                lines.append(parse_record(LINES[path.name], text))
            except ValueError as error:
                raise RunError(f"'{path}' is damaged in line {len(lines) + 1} ({error}): start a new run") from None
    return lines


def _describe_missing(rounds: Sequence[int]) -> str:
    """Return a warning that the record lacks lines of these rounds."""
    shown = ", ".join(map(str, rounds[:5])) + (", ..." if len(rounds) > 5 else "")
    return (
        f"metrics.jsonl lacks {len(rounds)} of the rounds before the checkpoint ({shown}): the model is not affected, "
        "but curves have gaps, and best values and sums in summary.json leave these rounds out"
    )
