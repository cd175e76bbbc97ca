"""Progress with the remaining time, and printed lines: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

LINE_SECONDS = 2.0
"""Minimum time between two plain lines; the first and the last round are always printed."""
PAUSE_SHARE = 0.1
"""Time between two lines of a long task, as a share of the time since its start."""


@contextmanager
def steps(console: Console | None, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of work other than training; yields a function to call with the number of finished steps.

    Shows a bar on a terminal, plain lines elsewhere, and nothing without a console.
    """
    if console is None:
        yield lambda count: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(escape(title), total=total)
            yield lambda count: bar.advance(task, count)
    else:
        yield StepLines(console, title, total).advance


class StepLines:
    """Plain lines with the finished share and the remaining time: every two seconds, less often as time passes."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        self._console, self._title, self._total = console, title, total
        self._started = self._last = time.monotonic()
        self._done = 0

    def advance(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        pause = max(LINE_SECONDS, (now - self._started) * PAUSE_SHARE)
        if now - self._last < pause or self._done >= self._total:
            return
        self._last = now
        left = (now - self._started) / self._done * (self._total - self._done)
        line = f"{self._title}  {self._done / self._total:.0%}  {format_duration(left)} left"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def choose_console(console: Console | None) -> Console | None:
    """Return the given console, or standard error if it is a terminal or a notebook."""
    if console is not None:
        return console
    found = Console(stderr=True)
    return found if found.is_terminal or found.is_jupyter else None


def tell(console: Console | None, line: str | None) -> None:
    """Print a line, if there is a line and a console."""
    if console is not None and line is not None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


PATIENCE = 2.0
"""Seconds before the progress bar appears."""


class DownloadProgress:
    """Progress bar of a download on standard error; `advance` is called with the number of new bytes."""

    def __init__(self, name: str, total: int | None, done: int) -> None:
        self._name, self._total, self._done = name, total, done
        self._started = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def advance(self, count: int) -> None:
        self._done += count
        if self._bar is None and time.monotonic() - self._started > PATIENCE:
            self._bar = self._start_bar()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)

    def _start_bar(self) -> Progress:
        bar = Progress(TextColumn("{task.description}"), BarColumn(), *self._columns(), console=Console(stderr=True))
        self._task = bar.add_task(self._name, total=self._total, completed=self._done)
        bar.start()
        return bar

    def _columns(self) -> tuple[ProgressColumn, ...]:
        return DownloadColumn(), TransferSpeedColumn()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class CountProgress(DownloadProgress):
    """Progress bar for a known number of items, with the remaining time."""

    def __init__(self, name: str, total: int) -> None:
        super().__init__(name, total, 0)

    def _columns(self) -> tuple[ProgressColumn, ...]:
        return MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn()
