"""Work beside the main thread, one piece at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Does one piece of work while the main thread goes on; its error is raised by the next `start` or `wait`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a piece of work is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Begin a piece of work, after the one before."""
        self.wait()
        thread = threading.Thread(target=self._do, args=(work,))
        self._thread = thread
        thread.start()

    def wait(self) -> None:
        """Wait until nothing is left to do, and raise what went wrong."""
        self.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def join(self) -> None:
        """Wait, but keep an error for later: the caller has one of its own."""
        if self._thread is not None:
            self._thread.join()  # an interruption leaves the thread in place, to be waited for again
            self._thread = None

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
