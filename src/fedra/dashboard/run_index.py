"""An index of all runs below a folder, which reads a run again only if one of its files has changed."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedra.locking import is_held
from fedra.reports.page_numbers import ORDER
from fedra.reports.run_files import STATUS, number
from fedra.reports.run_record import RECENT, RunRecord, Status, load_brief
from fedra.reports.run_search import RunSearch
from fedra.storage.run_folder import LOCK

WATCHED = ("config.toml", "metrics.jsonl", "summary.json", "sites.jsonl", STATUS)
"""Files whose time or size tells that a run has news."""

Signature = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class IndexEntry:
    """One line of the list of runs."""

    name: str
    title: str
    data: str
    model: str
    seed: int | None
    status: Status
    rounds: int
    planned: int | None
    metric: str
    value: float | None
    seconds: float
    seconds_left: float | None
    changed: float
    signature: Signature
    problem: str = ""

    @property
    def words(self) -> str:
        """What a search looks at."""
        return " ".join((self.name, self.title, self.data, self.model, self.status, f"seed {self.seed}")).lower()


@dataclass
class RunIndex:
    """Finds runs below `root` and remembers what the list shows of them."""

    root: Path
    _entries: dict[str, IndexEntry] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.root = self.root.resolve()
        self._search = RunSearch(self.root)

    def refresh(self) -> dict[str, IndexEntry]:
        """Look at the folder and return the entries by name, newest first."""
        with self._lock:
            names = self._search.find()
            known = self._entries
            entries = [self._update(name, known.get(name)) for name in names]
            self._entries = {entry.name: entry for entry in sorted(entries, key=lambda one: (-one.changed, one.name))}
            return self._entries

    def folder(self, name: str) -> Path | None:
        """Return the folder of a run that the index knows, or None: no other path is ever opened."""
        return self.root / name if name in self.refresh() else None

    def label(self, name: str) -> str:
        """Return how a run is called on pages; the root itself has no name below the root."""
        return self.root.name if name == "." else name

    def _update(self, name: str, known: IndexEntry | None) -> IndexEntry:
        folder = self.root / name
        signature = _sign(folder, WATCHED if name == "." else (*WATCHED, f"../{STATUS}"))
        if known is None or known.signature != signature:
            return _read(folder, name, signature)
        if known.status in ("running", "stopped") and (known.status == "running") != is_held(folder / LOCK):
            return _read(folder, name, signature)  # it ended, or was resumed, without writing anything yet
        return known


def _sign(folder: Path, watched: Sequence[str]) -> Signature:
    found = []
    for name in watched:
        try:
            status = os.lstat(f"{folder}/{name}")
            found.append((status.st_mtime_ns, status.st_size))
        except OSError:
            found.append((0, -1))
    return tuple(found)


def _read(folder: Path, name: str, signature: Signature) -> IndexEntry:
    record, rounds = load_brief(folder, name)
    key = next((key for key in ORDER if key != "train_loss" and record.last(key) is not None), "accuracy")
    seconds = number(record.summary.get("seconds"))
    return IndexEntry(
        name=name,
        title=record.title if record.config else "unknown",
        data=_name(record, "data"),
        model=_name(record, "model"),
        seed=record.seed,
        status=record.status,
        rounds=rounds,
        planned=record.planned,
        metric=key,
        value=record.final(key) if record.status == "finished" else record.last(key),
        seconds=_estimate(record, rounds) if seconds is None else seconds,
        seconds_left=_time_left(record, rounds),
        changed=record.changed,
        signature=signature,
        problem=record.describe() if record.status in ("damaged", "failed") else "",
    )


def _name(record: RunRecord, section: str) -> str:
    return str(record.section(section).get("name", ""))


def _recent(record: RunRecord) -> list[float]:
    return [value for line in record.metrics[-RECENT:] if (value := number(line.get("seconds"))) is not None]


def _estimate(record: RunRecord, rounds: int) -> float:
    """Return the time of all rounds, of which only the last ones were read."""
    recent = _recent(record)
    return statistics.fmean(recent) * rounds if recent else 0.0


def _time_left(record: RunRecord, rounds: int) -> float | None:
    recent: list[Any] = _recent(record)
    if record.status != "running" or not recent or record.planned is None:
        return None
    return statistics.fmean(recent) * max(0, record.planned - rounds)
