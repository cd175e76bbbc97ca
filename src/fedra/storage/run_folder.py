"""A run's folder: the record that outlives it.

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
from fedra.locking import locked
from fedra.storage.checkpoint import Checkpoint
from fedra.storage.claims import claim, claimed, open_list, remove_claimed
from fedra.writing import write_atomically

FIXED = ("config.toml", "metrics.jsonl", "clients.jsonl", "summary.json", "model.safetensors", "curves.svg")
"""What every run writes."""

LOCK = ".lock"
"""There while a run goes on, and no part of its record."""


class RunFolder:
    """Reads and writes one run's folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.checkpoint = Checkpoint(self.path / "checkpoint")
        self._open: dict[str, TextIO] = {}

    @property
    def begun_before(self) -> bool:
        """Whether the folder holds a run, finished or not."""
        return (self.path / "config.toml").exists()

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: the run came to its end, or failed."""
        return (self.path / "summary.json").exists()

    def refuse(self) -> None:
        """Refuse a folder that holds a run already, or files that fedra did not write."""
        if not self.path.is_dir() or claimed(self.path) is None:
            self._refuse_foreign()
        elif (self.path / "config.toml").exists():
            begun = f"was begun and can be continued (fedra run --resume {self.path})"
            how = self.ending() if self.finished else begun
            raise ConfigError(
                f"the run in '{self.path}' {how}: choose another folder, or replace the run with --force (force=True)"
            )

    def _refuse_foreign(self) -> None:
        """A folder must be empty or hold a run: files of the user's own could be replaced."""
        if self.path.is_file():
            raise ConfigError(f"the output folder must be a folder, and '{self.path}' is a file: choose another name")
        held = sorted({path.name for path in self.path.glob("*")} - {LOCK})
        if held:
            raise ConfigError(
                f"the output folder must be empty or hold a run, and '{self.path}' holds '{held[0]}': choose another "
                "folder"
            )

    @contextmanager
    def begun(self, config: Config, force: bool) -> Iterator[None]:
        """The folder made for a new run, which has it to itself inside the block; what an older run left there goes."""
        self._make()
        with self._held():
            if claimed(self.path) is None:
                self._refuse_foreign()
            elif not force:
                self.refuse()  # once more: another process may have begun a run since we were asked
            open_list(self.path)
            self._clear()
            self.write("config.toml", configuration.write(config).encode())
            yield

    @contextmanager
    def resumed(self) -> Iterator[Config]:
        """The configuration of a run that is to go on, which has its folder to itself inside the block."""
        self.config()  # a folder that holds no run is left as it is
        with self._held():
            if self.finished:
                raise ConfigError(f"the run in '{self.path}' {self.ending()}: nothing is left to resume")
            yield self.config()

    @contextmanager
    def _held(self) -> Iterator[None]:
        busy = f"'{self.path}' is in use by another process: wait for its end or end it, or choose another folder"
        with locked(self.path / LOCK, busy):
            yield

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the output folder '{self.path}' cannot be created ({error.strerror}): choose another"
            ) from None

    def _clear(self) -> None:
        """Remove what an older run wrote, and nothing else."""
        self.checkpoint.clear()
        remove_claimed(self.path)
        for name in FIXED:
            if (self.path / name).exists():
                raise ConfigError(
                    f"'{self.path / name}' is not fedra's and would be replaced: move it, or choose another folder"
                )

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the run's record."""
        claim(self.path, name)
        write_atomically(self.path / name, data)

    def claim(self, *names: str) -> None:
        """Note that these files, which somebody else writes, belong to the run."""
        claim(self.path, *names)

    def config(self) -> Config:
        """The configuration the run was made with."""
        if not (self.path / "config.toml").exists():
            raise ConfigError(f"'{self.path}' holds no run (no config.toml): give the folder that --out named")
        return configuration.read(self.path / "config.toml")

    def ending(self) -> str:
        """How the run ended, as a verb: "is finished", "diverged in round 26"."""
        return self.failure() or "is finished"

    def failure(self) -> str | None:
        """How the run failed, as a verb; None of one that has not."""
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
        """Forget lines of rounds that the checkpoint does not hold; a half-written last line goes too."""
        self.close()
        for name in ("metrics.jsonl", "clients.jsonl"):
            if (self.path / name).exists():
                kept = [line for line in _lines(self.path / name) if line["round"] <= rounds]
                self.write(name, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def metrics(self) -> list[dict[str, Any]]:
        """The rounds so far."""
        path = self.path / "metrics.jsonl"
        return _lines(path) if path.exists() else []

    def clients(self) -> list[dict[str, Any]]:
        """The clients' lines so far."""
        path = self.path / "clients.jsonl"
        return _lines(path) if path.exists() else []

    def summary(self) -> dict[str, Any]:
        """The finished run's summary."""
        try:
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"the run in '{self.path}' is not finished: continue it with --resume {self.path}") from None
        except ValueError as error:
            raise RunError(f"'{self.path / 'summary.json'}' is damaged ({error})") from None
        return summary

    def write_summary(self, summary: dict[str, Any]) -> None:
        self.write("summary.json", (json.dumps(summary, indent=2) + "\n").encode())

    def close(self) -> None:
        self.checkpoint.close()
        for file in self._open.values():
            file.close()
        self._open = {}


def _strict(line: dict[str, Any]) -> str:
    """A line as JSON, which has no word for what is not finite: null stands for it."""
    broken = {name for name, value in line.items() if isinstance(value, float) and not math.isfinite(value)}
    return json.dumps({name: None if name in broken else value for name, value in line.items()}, allow_nan=False)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a .jsonl file; what a kill left of the last one is passed over."""
    found: list[dict[str, Any]] = []
    for text in path.read_bytes().splitlines(keepends=True):
        if text.endswith(b"\n"):
            try:
                line = json.loads(text)
                line["round"] + 0
            except (ValueError, TypeError, KeyError):
                raise RunError(f"'{path}' is damaged in line {len(found) + 1}: start the run anew") from None
            found.append(line)
    return found
