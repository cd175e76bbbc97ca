"""TensorBoard events, for those who have the extra."""

from __future__ import annotations

from typing import Any, Self

from fedra.callbacks.callback import Report
from fedra.errors import ConfigError
from fedra.storage.run_folder import RunFolder


class Events:
    """Writes each round's numbers as scalars into the run's folder when switched on."""

    def __init__(self, folder: RunFolder | None, wanted: bool, done: int = 0) -> None:
        self._writer: Any = None
        if not wanted:
            return
        if folder is None:
            raise ConfigError("log.tensorboard needs a folder to write to: give --out")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "log.tensorboard needs the package tensorboard: pip install 'fedra[tensorboard]'"
            ) from None
        # A resumed run hides what a killed one had written after its last checkpoint.
        self._writer = SummaryWriter(str(folder.path / "tensorboard"), purge_step=done + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, report: Report) -> None:
        if self._writer is None:
            return
        for name, value in report.metrics.items():
            if name != "round" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, report.metrics["round"])
