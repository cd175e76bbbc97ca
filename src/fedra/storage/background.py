"""A background thread that runs one function at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs one function in a thread; the next `start` or `wait` raises its error."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a function is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Start a function, after the previous one has finished."""
        self.wait()
        thread = threading.Thread(target=self._run, args=(work,))
        self._thread = thread
        thread.start()

    def wait(self) -> None:
        """Wait for the function to finish, and raise its error."""
        self.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def join(self) -> None:
        """Wait without raising: for callers that already handle another error."""
        if self._thread is not None:
            self._thread.join()  # if interrupted, the thread stays set and can be joined again
            self._thread = None

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
