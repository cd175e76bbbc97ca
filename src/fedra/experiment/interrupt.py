"""Ctrl-C and SIGTERM end a run at once, except while a round is being recorded."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self


class Interruption:
    """Raises KeyboardInterrupt on SIGINT and SIGTERM, delayed to the end of a `held` block.

    Does nothing outside the main thread, which alone can set signal handlers. Signals that are ignored, as in a job
    started with nohup, stay ignored.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._holding = self._requested = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            present = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            self._before = {n: how for n, how in present.items() if how not in (None, signal.SIG_IGN)}
        for number in self._before:
            signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, how in self._before.items():
            signal.signal(number, how)

    def _stop(self, *_: object) -> None:
        self._requested = True
        if not self._holding:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay interruptions to the end of the block."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._requested:
            raise KeyboardInterrupt
