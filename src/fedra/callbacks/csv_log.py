"""Log of every round's metrics as a CSV file."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from fedra.callbacks.callback import Callback, RoundReport, RunContext
from fedra.errors import ConfigError
from fedra.storage.claims import claim
from fedra.writing import write_atomically


class CSVLog(Callback):
    """Write one row per round, with one column per metric.

    The file is replaced atomically, so it is complete at any time.

    Args:
        path: The file. Defaults to metrics.csv in the run's folder.

    Example:
        >>> fedra.run("c.toml", out="runs/a", callbacks=[CSVLog()])
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._given = None if path is None else Path(path)

    def on_run_start(self, run: RunContext) -> None:
        if self._given is None and run.folder is None:
            raise ConfigError(
                "CSVLog must have a path if the run has no folder: pass CSVLog('metrics.csv'), or set out"
            )
        if self._given is None:
            assert run.folder is not None
            claim(run.folder, "metrics.csv")

    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        columns = list(dict.fromkeys(name for line in run.metrics for name in line))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(run.metrics)
        path = self._given or run.folder / "metrics.csv"  # type: ignore[operator]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.getvalue().encode(), durable=False)
