"""The entry of the `fedra` command and of `python -m fedra`."""

from __future__ import annotations

import signal
import threading
from typing import Any


def main() -> Any:
    """Run the command line; Ctrl-C ends it without a traceback, also while it still imports."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupted import leaves half a module: end at once
        from fedra.cli import main as run

        signal.signal(signal.SIGINT, _interrupt)
    else:
        from fedra.cli import main as run
    return run()


def _interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt the first time; the second time the process ends at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
