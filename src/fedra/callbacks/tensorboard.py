"""TensorBoard logging (needs the extra `tensorboard`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedra.callbacks.callback import Callback, RoundReport, RunContext
from fedra.errors import ConfigError
from fedra.storage.claims import claim


class TensorBoard(Callback):
    """Write the numeric metrics of every round as TensorBoard scalars.

    Args:
        folder: Folder of the event files. Defaults to `tensorboard` in the run's folder.

    Example:
        >>> fedra.run("c.toml", out="runs/a", callbacks=[TensorBoard()])
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self._given = None if folder is None else Path(folder)
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "the TensorBoard callback needs the extra 'tensorboard': pip install tensorboard"
            ) from None
        self._make = SummaryWriter

    def on_run_start(self, run: RunContext) -> None:
        if self._given is None and run.folder is None:
            raise ConfigError(
                "TensorBoard must have a folder if the run has none: pass TensorBoard('logs'), or set out"
            )
        folder = self._given or run.folder / "tensorboard"  # type: ignore[operator]
        # A resumed run hides the events that a killed run wrote after its last checkpoint.
        self._writer = self._make(str(folder), purge_step=run.round + 1)
        if run.folder is not None and self._given is None:
            claim(run.folder, *(str(path.relative_to(run.folder)) for path in folder.glob("events.*")))

    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        for name, value in report.metrics.items():
            if name != "round" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, report.metrics["round"])

    def on_run_end(self, run: RunContext, summary: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.close()
