"""Record of a run: one line per round and client, and checkpoints."""

from __future__ import annotations

import time

from fedra.callbacks.callback import Callback, RoundReport, RunContext
from fedra.storage.run_folder import RunFolder


class Recorder(Callback):
    """Write metrics.jsonl, clients.jsonl and, at most every `seconds` seconds, a checkpoint."""

    def __init__(self, folder: RunFolder, seconds: float) -> None:
        self._folder, self._seconds, self._saved = folder, seconds, time.monotonic()

    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        if report.clients:
            self._folder.append("clients.jsonl", report.clients)
        self._folder.append("metrics.jsonl", [report.metrics])
        if time.monotonic() - self._saved >= self._seconds:
            self._folder.save(run.state)
            self._saved = time.monotonic()
