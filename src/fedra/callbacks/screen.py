"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedra.callbacks.callback import Callback, RoundReport, RunContext
from fedra.console import LINE_SECONDS, format_duration, tell
from fedra.evaluation.results import find_collapse
from fedra.faces.metrics.collapse import collapse_warning

QUIET_SECONDS = 10.0
"""Seconds without output after which a line shows the progress within the round."""


HISTORY_LINES = 10
"""Most lines of past rounds above the bar."""


class Position:
    """Progress of training, which may be a round ahead of the last reported round while that one is evaluated."""

    def __init__(self, done: int, rounds: int, cohort: int) -> None:
        self.done, self._rounds, self._cohort, self._clients = done, rounds, max(cohort, 1), 0

    def add_client(self) -> None:
        """Count a finished client, capped because a repeated round trains its clients again."""
        self._clients = min(self._clients + 1, 2 * self._cohort)

    def finish_round(self, number: int) -> None:
        """Record that a round was reported."""
        self.done, self._clients = number, max(0, self._clients - self._cohort)

    @property
    def rounds(self) -> float:
        """Number of finished rounds, including the fraction of the current one."""
        return min(self.done + self._clients / self._cohort, self._rounds)


class Bar:
    """A progress bar with round, accuracy, examples per second and remaining time."""

    def __init__(self, console: Console, title: str, rounds: int, done: int, cohort: int) -> None:
        self._position, self._rounds = Position(done, rounds, cohort), rounds
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
        """Stop updating the bar."""
        self._progress.stop()

    def show_client(self) -> None:
        """Advance the bar by one client."""
        self._position.add_client()
        done = self._position.done
        self._progress.update(self._task, completed=done + 0.95 * (self._position.rounds - done))

    def show_round(self, report: RoundReport) -> None:
        self._position.finish_round(done := report.metrics["round"])
        changes: dict[str, Any] = {"completed": done, "round": done, "rate": self._rate.text(report)}
        if shown := _accuracy(report.metrics):
            changes["accuracy"] = shown
        self._progress.update(self._task, **changes)
        if done % -(-self._rounds // HISTORY_LINES) == 0:  # the bar itself shows the last round alone
            text = f"round {done}/{self._rounds}{shown and f'  {shown}'}{_loss(report.metrics)}"
            self._progress.console.print(text, highlight=False)


class Lines:
    """Plain lines at intervals, for logs and pipes."""

    def __init__(self, console: Console, title: str, rounds: int, done: int, cohort: int = 1) -> None:
        self._console, self._title, self._rounds = console, title, rounds
        self._started, self._first, self._last = time.monotonic(), done, 0.0
        self._position = Position(done, rounds, cohort)
        self._rate = Rate()

    def stop(self) -> None:
        """Do nothing: lines need no cleanup."""

    def show_client(self) -> None:
        """Print the progress within a long round."""
        self._position.add_client()
        now = time.monotonic()
        if now - max(self._last, self._started) < QUIET_SECONDS:
            return
        self._last, at, current = now, self._position.rounds, self._position.done + 1
        passed = at - self._first
        left = (now - self._started) / passed * (self._rounds - self._first - passed)
        # A round is evaluated while the next one trains, which has no line before the first has its own.
        share = f"{at - current + 1:.0%} done" if at <= current else "trained, being evaluated"
        self._console.print(
            f"{self._title}  round {current}/{self._rounds}  {share}  {format_duration(left)} left",
            highlight=False,
            soft_wrap=True,
        )

    def show_round(self, report: RoundReport) -> None:
        now, number = time.monotonic(), report.metrics["round"]
        self._position.finish_round(number)
        rate = self._rate.text(report)
        if number != self._rounds and number != self._first + 1 and now - self._last < LINE_SECONDS:
            return
        self._last = now
        left = (now - self._started) / (number - self._first) * (self._rounds - number)
        shown = _accuracy(report.metrics)
        self._console.print(
            f"{self._title}  round {number}/{self._rounds}{shown and f'  {shown}'}"
            f"{_loss(report.metrics)}  {rate}  {format_duration(left)} left",
            highlight=False,
            soft_wrap=True,
        )


def _accuracy(metrics: Mapping[str, Any]) -> str:
    """Return a round's accuracy as text, or an empty string if the round was not evaluated."""
    if "collapsed" in metrics:
        return "embeddings collapsed"
    return "" if metrics["accuracy"] is None else f"accuracy {metrics['accuracy']:.2%}"


def _loss(metrics: Mapping[str, Any]) -> str:
    """Return a round's training loss as text, or an empty string if privacy does not cover it."""
    loss = metrics.get("train_loss")
    return "" if loss is None else f"  train loss {loss:.4f}"


class Rate:
    """Examples per second, averaged over the run so far."""

    def __init__(self) -> None:
        self._started, self._examples = time.monotonic(), 0

    def text(self, report: RoundReport) -> str:
        self._examples += report.examples
        return f"{self._examples / max(time.monotonic() - self._started, 1e-9):,.0f} examples/s"


class Screen(Callback):
    """Show progress on the run's console: a bar on a terminal, lines otherwise."""

    def __init__(self) -> None:
        self._shown: Bar | Lines | None = None

    def on_run_start(self, run: RunContext) -> None:
        if run.console is not None:
            kind = Bar if run.console.is_terminal else Lines
            self._shown = kind(run.console, run.title, run.rounds, run.round, run.ticks)

    def on_progress(self, run: RunContext) -> None:
        if self._shown is not None:
            self._shown.show_client()

    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        if self._shown is not None:
            self._shown.show_round(report)
        warn_of_restarts(run.console, report.clients)
        warn_of_collapse(run.console, run.metrics)

    def on_training_end(self, run: RunContext) -> None:
        if self._shown is not None:
            self._shown.stop()

    def on_run_end(self, run: RunContext, summary: dict[str, Any]) -> None:
        self.on_training_end(run)


def warn_of_restarts(console: Console | None, lines: list[dict[str, Any]]) -> None:
    """Warn about clients whose state was lost."""
    for line in lines:
        if "restarted" in line:
            tell(console, f"warning: client {line['client']} restarts from the global model: {line['restarted']}")


def warn_of_collapse(console: Console | None, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Warn if embeddings have collapsed since the previous evaluation."""
    reason = metrics[-1].get("collapsed")
    if reason is not None and find_collapse(metrics[:-1]) is None:
        tell(console, f"round {metrics[-1]['round']}: {collapse_warning(reason)}")
