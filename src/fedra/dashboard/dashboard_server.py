"""Serves the dashboard on this machine."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from fedra.console import tell
from fedra.errors import ConfigError

HOST = "127.0.0.1"
PORT = 8765


def serve(folder: Path | str = ".", *, port: int = PORT, console: Console | None = None) -> None:
    """Serve the dashboard of a folder of runs until it is interrupted (Ctrl-C).

    It listens on the loopback interface only, so other machines cannot reach it, and it only reads.

    Args:
        folder: The folder with runs; nothing outside of it is read.
        port: The port; 0 takes a free one.
        console: Where the address is printed; standard output by default.

    Example:
        >>> fedra.dashboard.serve("runs")  # doctest: +SKIP
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the dashboard needs {' and '.join(missing)}: pip install 'fedra[dashboard]'")
    import uvicorn

    from fedra.dashboard.dashboard_app import build_app

    app = build_app(folder)
    listening = _listen(port)
    address = f"http://{HOST}:{listening.getsockname()[1]}"
    tell(console or Console(), f"dashboard of {folder} at {address} (Ctrl-C ends it)")
    settings = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", server_header=False)
    try:
        uvicorn.Server(settings).run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # the usual way to end it
    finally:
        listening.close()


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()  # a browser that opens the printed address at once waits for the server
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"the port must be free, got {port} ({error.strerror}): choose another one with --port, or 0 for any"
        ) from None
    return listening
