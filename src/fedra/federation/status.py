"""What a coordinator shows: `status.json` for other programs, `sites.jsonl` for the record, a table on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedra.callbacks.callback import Callback, RoundReport, RunContext
from fedra.console import format_duration, tell
from fedra.federation.exchange import SiteState
from fedra.federation.federated_runner import FederatedRunner
from fedra.storage.run_folder import RunFolder
from fedra.writing import write_json

EVERY = 1.0
"""Seconds between two writes of status.json."""


class StatusFile:
    """Writes `status.json`, at most once a second."""

    def __init__(
        self, path: Path, sites: Mapping[str, SiteState], last_seen: Callable[[str], float | None], rounds: int
    ) -> None:
        self._path, self._sites, self._last_seen = path, sites, last_seen
        self._rounds = rounds
        self._written = 0.0
        self.round, self.phase = 0, "waiting for sites"
        self.accuracy: float | None = None
        self.left: float | None = None
        self.described: dict[str, dict[str, Any]] = {}

    def set_phase(self, phase: str) -> None:
        """Say what the coordinator does now, and write it at once."""
        self.phase = phase
        self.write(now=True)

    def content(self) -> dict[str, Any]:
        """Return the content of status.json."""
        sites = {}
        for name, state in self._sites.items():
            seen = self._last_seen(name)
            sites[name] = {**vars(state), "last_seen": None if seen is None else round(seen, 1)}
        return {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "phase": self.phase,
            "round": self.round,
            "rounds": self._rounds,
            "accuracy": self.accuracy,
            "seconds_left": None if self.left is None else round(self.left, 1),
            "sites": sites,
            "described": self.described,
        }

    def write(self, now: bool = False) -> None:
        """Write the file if the last write is a second ago."""
        if now or time.monotonic() - self._written >= EVERY:
            write_json(self._path, self.content())
            self._written = time.monotonic()


def status_table(content: Mapping[str, Any]) -> Table:
    """Return the table of a status: one line per site."""
    table = Table(box=None, pad_edge=False)
    for title in ("site", "state", "last seen", "round", "time", "examples", "train loss", "own test", "MB up"):
        table.add_column(title, justify="left" if title in ("site", "state") else "right")
    for name, site in content["sites"].items():
        seen = site["last_seen"]
        loss, accuracy = site["train_loss"], site["accuracy"]
        table.add_row(
            Text(name),
            Text(site["state"]),
            "never" if seen is None else format_duration(seen),
            str(site["round"] or ""),
            "" if site["seconds"] is None else f"{site['seconds']:.1f} s",
            f"{site['examples']:,}" if site["examples"] else "",
            "" if loss is None else f"{loss:.4f}",
            "" if accuracy is None else f"{accuracy:.1%}",
            f"{site['bytes_up'] / 1e6:.2f}",
        )
    return table


def status_line(content: Mapping[str, Any]) -> str:
    """Return the first line of a status."""
    accuracy = "" if content["accuracy"] is None else f", accuracy {content['accuracy']:.2%}"
    left = "" if not content["seconds_left"] else f", {format_duration(content['seconds_left'])} left"
    return f"{content['phase']}: round {content['round']} of {content['rounds']}{accuracy}{left}"


class SiteRecorder(Callback):
    """Adds the site to each client's line, writes sites.jsonl, and keeps the status and the live table up to date."""

    def __init__(self, runner: FederatedRunner, status: StatusFile, folder: RunFolder) -> None:
        self._runner, self._status, self._folder = runner, status, folder
        self._live: Live | None = None
        self._started, self._first = time.monotonic(), 0

    def refresh(self) -> None:
        """Show the present state."""
        self._status.write()
        if self._live is not None:
            content = self._status.content()
            self._live.update(Group(Text(status_line(content)), status_table(content)))

    def on_run_start(self, run: RunContext) -> None:
        self._started, self._first = time.monotonic(), run.round
        self._status.round = run.round
        self._status.set_phase("training")
        self._live = open_table(run.console)

    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        for line in report.clients:
            line["site"] = self._runner.roster.site_of(line["client"])
        number = report.metrics["round"]
        self._folder.append("sites.jsonl", self._runner.site_lines(number))
        passed = time.monotonic() - self._started
        self._status.round, self._status.accuracy = number, report.metrics.get("accuracy")
        self._status.left = passed / max(number - self._first, 1) * (run.rounds - number)
        self._status.write(now=True)
        self.refresh()

    def on_training_end(self, run: RunContext) -> None:
        self._close()
        self._status.set_phase("final tests")

    def on_run_end(self, run: RunContext, summary: dict[str, Any]) -> None:
        self._close()
        self._status.set_phase(summary["status"])
        if summary["status"] == "finished":
            tell(run.console, status_line(self._status.content()))

    def _close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def open_table(console: Console | None) -> Live | None:
    """Open the live table on a terminal."""
    if console is None or not console.is_terminal:
        return None
    live = Live(console=console, refresh_per_second=4, transient=True)
    live.start()
    return live
