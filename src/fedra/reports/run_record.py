"""One run as reports and the dashboard see it: what was recorded, how it ended, how far it is."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedra.config.mode import NAME as CENTRALIZED
from fedra.config.schema import OBJECT
from fedra.console import format_duration
from fedra.evaluation.results import find_collapse
from fedra.locking import is_held
from fedra.reports.run_files import RunFiles, number, table_of
from fedra.storage.run_folder import LOCK

Status = Literal["finished", "running", "stopped", "failed", "damaged"]
RECENT = 10
"""Number of last rounds from which the remaining time is estimated."""
SHOWN_CAUSES = 3


@dataclass(frozen=True)
class RunRecord:
    """The records of one run, read once; `name` is its name in a report.

    Files that only some sections need are read when they are first asked for.
    """

    name: str
    files: RunFiles
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    status: Status
    changed: float

    @property
    def folder(self) -> Path:
        return self.files.folder

    @property
    def title(self) -> str:
        """The name of the algorithm, marked if the run is centralized."""
        algorithm = self.section("algorithm")
        name = str(algorithm.get("label" if algorithm.get("name") == OBJECT else "name", "unknown"))
        if self.config.get("mode") != CENTRALIZED:
            return name
        return CENTRALIZED if name == "fedavg" else f"{CENTRALIZED} ({name})"

    @property
    def headline(self) -> str:
        """What was trained on what, such as "fedgc on faces"."""
        data = self.section("data").get("name")
        return f"{self.title} on {data}" if data else self.name

    @property
    def seed(self) -> int | None:
        found = number(self.config.get("seed"))
        return None if found is None else int(found)

    def section(self, name: str) -> dict[str, Any]:
        """Return a section of the configuration, or an empty one."""
        return table_of(self.config.get(name))

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """The lines of clients.jsonl."""
        return self.files.read_lines("clients.jsonl")

    @property
    def rounds(self) -> int:
        """Number of finished rounds."""
        return len(self.metrics)

    @property
    def planned(self) -> int | None:
        """Number of rounds that the configuration asks for."""
        rounds = number(self.config.get("rounds"))
        if rounds is not None:
            return int(rounds)
        cohort = self.section("cohort")
        each, share = number(cohort.get("rounds_per_client")), number(cohort.get("fraction")) or 1.0
        share = 1.0 if self.config.get("mode") == CENTRALIZED else share
        return None if each is None else max(1, math.ceil(each / share - 1e-9))

    @property
    def seconds(self) -> float:
        """Training time of all finished rounds."""
        return sum(number(line.get("seconds")) or 0.0 for line in self.metrics)

    @property
    def seconds_left(self) -> float | None:
        """Estimated time to the last round, or None if the run is not running or has no finished round."""
        recent = [value for line in self.metrics[-RECENT:] if (value := number(line.get("seconds"))) is not None]
        if self.status != "running" or not recent or self.planned is None:
            return None
        return statistics.fmean(recent) * max(0, self.planned - self.rounds)

    def total(self, key: str) -> float:
        """Return the sum of a key over the rounds."""
        return sum(number(line.get(key)) or 0.0 for line in self.metrics)

    def last(self, key: str) -> float | None:
        """Return the last recorded value of a key of the rounds."""
        return next((v for line in reversed(self.metrics) if (v := number(line.get(key))) is not None), None)

    def final(self, key: str) -> float | None:
        """Return the value that counts for a finished run: that of the last evaluation, none if it collapsed."""
        if self.status != "finished" or find_collapse(self.metrics) is not None:
            return None
        found = number(self.summary.get(f"final_{key}"))
        return self.last(key) if found is None else found

    def describe(self) -> str:
        """Return a sentence about how the run ended or how far it is."""
        done = f"{self.rounds} of {self.planned} rounds" if self.planned else f"{self.rounds} rounds"
        if self.status == "failed":
            return str(self.summary.get("failure") or f"the run failed after {done}")
        if self.status == "damaged":
            return f"The records are damaged: {' '.join(self.files.problems)}"
        if self.status == "stopped":
            return f"Not finished: stopped after {done}; continue it with fedra run --resume {self.folder}"
        if self.status == "running":
            left = self.seconds_left
            return f"Running: {done} finished" + (f", about {format_duration(left)} left" if left is not None else "")
        if collapse := find_collapse(self.metrics):
            return f"Finished, but its embeddings collapsed: {collapse}"
        return f"Finished: {done} in {format_duration(self.seconds)}"

    def warnings(self) -> list[str]:
        """Return a sentence for each thing in the records that a reader should know about."""
        return [*self.files.problems, *_round_warnings(self.metrics), *_client_warnings(self.clients)]


def load_record(folder: Path, name: str | None = None, *, enclosed: bool = False) -> RunRecord:
    """Read the records of a run; damaged files are reported in its status. See `RunFiles` for `enclosed`."""
    files = RunFiles(folder, enclosed=enclosed)
    config = files.read_table("config.toml")
    if config is None and not files.problems:
        files.problems.append("config.toml is missing.")
    metrics = [line for line in files.read_lines("metrics.jsonl") if number(line.get("round")) is not None]
    summary = files.read_table("summary.json")
    status = _status(files, config, summary)
    return RunRecord(name or folder.name, files, config or {}, metrics, summary or {}, status, last_change(folder))


def load_brief(folder: Path, name: str) -> tuple[RunRecord, int]:
    """Read what a list of many runs shows, and the number of finished rounds; only the last rounds are read."""
    files = RunFiles(folder)
    config = files.read_table("config.toml")
    metrics = [line for line in files.read_last_lines("metrics.jsonl") if number(line.get("round")) is not None]
    summary = files.read_table("summary.json")
    rounds = int(metrics[-1]["round"]) if metrics else 0
    status = _status(files, config, summary)
    return RunRecord(name, files, config or {}, metrics, summary or {}, status, last_change(folder)), rounds


def _status(files: RunFiles, config: dict[str, Any] | None, summary: dict[str, Any] | None) -> Status:
    if config is None or files.problems:  # later reads may add problems, of files that say nothing about the end
        return "damaged"
    if summary is not None:
        return "failed" if summary.get("status") == "failed" else "finished"
    return "running" if is_held(files.folder / LOCK) else "stopped"


def last_change(folder: Path) -> float:
    """Return the time of the newest record of a run, in seconds since the epoch."""
    times = [0.0]
    for name in ("config.toml", "metrics.jsonl", "summary.json"):
        try:
            times.append((folder / name).lstat().st_mtime)
        except OSError:
            continue
    return max(times)


def _round_warnings(metrics: list[dict[str, Any]]) -> Iterator[str]:
    for key, text in (
        ("dropped", "uploads of sampled clients were not used"),
        ("restarted", "clients restarted from the global model, because their state was lost"),
    ):
        rounds = [line["round"] for line in metrics if (number(line.get(key)) or 0) > 0]
        if rounds:
            total = sum(int(number(line.get(key)) or 0) for line in metrics)
            yield f"{total:,} {text} (in {len(rounds):,} rounds, last in round {rounds[-1]})."
    last: dict[str, Any] = next((line for line in reversed(metrics) if number(line.get("accuracy")) is not None), {})
    if last.get("only_class") is not None:
        yield f"In round {last['round']} the model predicted the same class for every example."
    if zero := next((line for line in reversed(metrics) if line.get("zero_embeddings")), None):
        yield f"In round {zero['round']} {zero['zero_embeddings']} images had an embedding of zero."
    if collapse := find_collapse(metrics):
        yield f"The embeddings collapsed: {collapse}"
    if metrics and any(line.get("train_loss", 0.0) is None for line in metrics[-1:]):
        yield "The training loss of the last round is not finite."


def _client_warnings(clients: list[dict[str, Any]]) -> Iterator[str]:
    for key, what in (("dropped", "Not used"), ("restarted", "Restarted")):
        causes = Counter(str(line[key]) for line in clients if line.get(key))
        for cause, count in causes.most_common(SHOWN_CAUSES):
            yield f"{what}, {count:,} times: {cause}."
