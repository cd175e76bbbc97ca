"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedra.callbacks.callback import Callback, RoundReport, RunContext
from fedra.console import LINE_SECONDS, duration, tell
from fedra.evaluation.results import collapse_in
from fedra.faces.metrics.collapse import collapse_warning

QUIET_SECONDS = 10.0
"""After so long without a line, one tells how much of the round is done."""


class Position:
    """Where training stands, which may be a round ahead of the last that was told: its test is still going on."""

    def __init__(self, done: int, rounds: int, cohort: int) -> None:
        self.done, self._rounds, self._cohort, self._clients = done, rounds, max(cohort, 1), 0

    def client(self) -> None:
        """One more client has finished; one of a round that is tried again does not count."""
        self._clients = min(self._clients + 1, 2 * self._cohort)

    def round(self, number: int) -> None:
        """That round was told."""
        self.done, self._clients = number, max(0, self._clients - self._cohort)

    @property
    def rounds(self) -> float:
        """Rounds done, the present one by its share."""
        return min(self.done + self._clients / self._cohort, self._rounds)


class Bar:
    """A progress bar with round, accuracy, examples per second and time left."""

    def __init__(self, console: Console, title: str, rounds: int, done: int, cohort: int) -> None:
        self._position = Position(done, rounds, cohort)
        self._rate = Rate()
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("round {task.fields[round]}/{task.fields[rounds]}"),
            TextColumn("[green]{task.fields[accuracy]}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
            transient=False,
        )
        self._task = self._progress.add_task(
            title, total=rounds, completed=done, round=done, rounds=rounds, accuracy="", rate=""
        )

        self._progress.start()

    def stop(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()

    def client(self) -> None:
        """A client has finished: the bar moves by its share of the round."""
        self._position.client()
        done = self._position.done
        self._progress.update(self._task, completed=done + 0.95 * (self._position.rounds - done))

    def round(self, report: RoundReport) -> None:
        self._position.round(done := report.metrics["round"])
        changes: dict[str, Any] = {"completed": done, "round": done, "rate": self._rate.text(report)}
        if shown := _accuracy(report.metrics):
            changes["accuracy"] = shown
        self._progress.update(self._task, **changes)


class Lines:
    """A plain line now and then, for logs and pipes."""

    def __init__(self, console: Console, title: str, rounds: int, done: int, cohort: int = 1) -> None:
        self._console, self._title, self._rounds = console, title, rounds
        self._started, self._begun, self._last = time.monotonic(), done, 0.0
        self._position = Position(done, rounds, cohort)
        self._rate = Rate()

    def stop(self) -> None:
        """Lines need no end."""

    def client(self) -> None:
        """A long round is told before its end."""
        self._position.client()
        now = time.monotonic()
        if now - max(self._last, self._started) < QUIET_SECONDS:
            return
        self._last, at = now, self._position.rounds
        present, passed = math.ceil(at), at - self._begun
        left = (now - self._started) / passed * (self._rounds - self._begun - passed)
        self._console.print(
            f"{self._title}  round {present}/{self._rounds}  {at - present + 1:.0%} of it  {duration(left)} left",
            highlight=False,
            soft_wrap=True,
        )

    def round(self, report: RoundReport) -> None:
        now, number = time.monotonic(), report.metrics["round"]
        self._position.round(number)
        rate = self._rate.text(report)
        if number != self._rounds and number != self._begun + 1 and now - self._last < LINE_SECONDS:
            return
        self._last = now
        left = (now - self._started) / (number - self._begun) * (self._rounds - number)
        shown = _accuracy(report.metrics)
        self._console.print(
            f"{self._title}  round {number}/{self._rounds}{shown and f'  {shown}'}"
            f"  train loss {report.metrics['train_loss']:.4f}  {rate}  {duration(left)} left",
            highlight=False,
            soft_wrap=True,
        )


def _accuracy(metrics: Mapping[str, Any]) -> str:
    """What a round's test found, in two words; nothing where there was none."""
    if "collapsed" in metrics:
        return "embeddings collapsed"
    return "" if metrics["accuracy"] is None else f"accuracy {metrics['accuracy']:.2%}"


class Rate:
    """Examples per second, averaged over the run so far."""

    def __init__(self) -> None:
        self._started, self._examples = time.monotonic(), 0

    def text(self, report: RoundReport) -> str:
        self._examples += report.examples
        return f"{self._examples / max(time.monotonic() - self._started, 1e-9):,.0f} examples/s"


class Screen(Callback):
    """Progress on the run's console: a bar where it is a terminal, lines where it is not."""

    def __init__(self) -> None:
        self._shown: Bar | Lines | None = None

    def on_run_start(self, run: RunContext) -> None:
        if run.console is not None:
            kind = Bar if run.console.is_terminal else Lines
            self._shown = kind(run.console, run.title, run.rounds, run.round, run.ticks)

    def on_progress(self, run: RunContext) -> None:
        if self._shown is not None:
            self._shown.client()

    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        if self._shown is not None:
            self._shown.round(report)
        warn_of_restarts(run.console, report.clients)
        warn_of_collapse(run.console, run.metrics)

    def on_training_end(self, run: RunContext) -> None:
        if self._shown is not None:
            self._shown.stop()

    def on_run_end(self, run: RunContext, summary: dict[str, Any]) -> None:
        self.on_training_end(run)


def warn_of_restarts(console: Console | None, lines: list[dict[str, Any]]) -> None:
    """Tell whose lines say that it lost its memory."""
    for line in lines:
        if "restarted" in line:
            tell(console, f"warning: client {line['client']} starts again from the global model: {line['restarted']}")


def warn_of_collapse(console: Console | None, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Tell that the last round's embeddings have collapsed, where those of the test before had not."""
    reason = metrics[-1].get("collapsed")
    if reason is not None and collapse_in(metrics[:-1]) is None:
        tell(console, f"round {metrics[-1]['round']}: {collapse_warning(reason)}")
