"""Progress bars for what takes long enough to make a person wonder."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

PATIENCE = 2.0
"""Seconds before the bar appears."""


class DownloadProgress:
    """`with DownloadProgress(name, total, done) as bar: bar.advance(n)`, drawn on the standard error."""

    def __init__(self, name: str, total: int | None, done: int) -> None:
        self._name, self._total, self._done = name, total, done
        self._started = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def advance(self, count: int) -> None:
        self._done += count
        if self._bar is None and time.monotonic() - self._started > PATIENCE:
            self._bar = self._draw()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)

    def _draw(self) -> Progress:
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
    """The same for work on a known number of things, with the time left."""

    def __init__(self, name: str, total: int) -> None:
        super().__init__(name, total, 0)

    def _columns(self) -> tuple[ProgressColumn, ...]:
        return MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn()
