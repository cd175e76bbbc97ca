"""Callbacks that run alongside training: progress, records, early stopping, TensorBoard, CSV, and your own.

A callback is an object with any of the hooks of `Callback`. Pass a list of callbacks to `fedra.run`, `fedra.resume`,
`fedra.simulate` or `Experiment.run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.callbacks.callback import Callback, RoundReport, RunContext
    from fedra.callbacks.csv_log import CSVLog
    from fedra.callbacks.early_stopping import EarlyStopping
    from fedra.callbacks.tensorboard import TensorBoard

__all__ = ["CSVLog", "Callback", "EarlyStopping", "RoundReport", "RunContext", "TensorBoard"]

_HOMES = {
    "fedra.callbacks.callback": "Callback RoundReport RunContext",
    "fedra.callbacks.csv_log": "CSVLog",
    "fedra.callbacks.early_stopping": "EarlyStopping",
    "fedra.callbacks.tensorboard": "TensorBoard",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
