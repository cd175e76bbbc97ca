"""A federation as processes over loopback TLS, which can be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rehearsing import Rehearsed

from fedra.federation.rehearsal import find_free_port, start_site

LIMIT = 240.0
"""Seconds after which a federation counts as hanging."""


class Processes:
    """A coordinator's and its sites' processes, which can be killed and started again."""

    def __init__(
        self,
        folder: Path,
        table: dict[str, Any],
        sites: int = 2,
        limit: float = LIMIT,
        port: int | None = None,
        **rules: Any,
    ) -> None:
        """`port` is where the coordinator listens; another one in `rules["address"]` is a proxy's, which sites call."""
        self.port = port or find_free_port()
        self.folder, self.limit = folder, limit
        settings = {"address": f"127.0.0.1:{self.port}", "evaluation": "none", "patience": 30, **rules}
        self.federation = Rehearsed(folder, table, sites, settings)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        if name != "coordinator":
            self.running[name] = start_site(self.folder / name)
            return
        words = [sys.executable, "-m", "fedra.cli", "federate", "serve", str(self.folder / "coordinator")]
        words += ["--listen", f"127.0.0.1:{self.port}"]
        with open(self.folder / "coordinator.txt", "ab") as output:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self.running[name] = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def kill(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()
        self.start(name)

    def run(self, meanwhile: Callable[[Processes, float], None] = lambda processes, since: None) -> None:
        """Run to the end; `meanwhile` is called again and again."""
        for name in ("coordinator", *self.federation.places):
            self.start(name)
        started = time.monotonic()
        try:
            while self.running["coordinator"].poll() is None:
                assert time.monotonic() - started < self.limit, f"not over after {self.limit:g} s\n{self.output()}"
                meanwhile(self, time.monotonic() - started)
                time.sleep(0.02)
            code = self.running["coordinator"].returncode
            assert code == 0, f"the coordinator ended with {code}\n{self.output()}"
        finally:
            for process in self.running.values():
                process.kill()
                process.wait()

    def output(self) -> str:
        names = [self.folder / "coordinator.txt", *self.folder.glob("site-*/output.txt")]
        return "\n".join(f"--- {path}\n{path.read_text()[-2000:]}" for path in names if path.exists())

    @property
    def record(self) -> Path:
        return self.folder / "coordinator" / "run"
