"""Plot of a finished run's metrics over rounds."""

from __future__ import annotations

from typing import Any

from fedra.callbacks.callback import Callback, RunContext
from fedra.storage.claims import claim


class Curves(Callback):
    """Write curves.svg to the run's folder when the run finishes."""

    def on_run_end(self, run: RunContext, summary: dict[str, Any]) -> None:
        if summary["status"] == "finished" and run.folder is not None:
            from fedra.reports.comparison import draw_curves  # matplotlib is slow to import and only needed here

            claim(run.folder, "curves.svg")
            validated = [run.title] if run.config["evaluation"]["validation"] else []
            draw_curves({run.title: run.metrics}, run.folder / "curves.svg", validated)
