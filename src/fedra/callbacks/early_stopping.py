"""Stop a run that no longer improves."""

from __future__ import annotations

import math
from typing import Any

from fedra.callbacks.callback import Callback, RunContext
from fedra.errors import ConfigError
from fedra.evaluation.results import is_evaluated


class EarlyStopping(Callback):
    """Stop the run when a metric has not improved for `patience` evaluated rounds.

    The history is read from the run's metrics, so a resumed run stops at the same round as an uninterrupted one.

    Args:
        metric: A key of the round's metrics, such as "accuracy", "loss" or "auroc".
        patience: Number of evaluated rounds without an improvement after which the run stops.
        min_delta: Minimum change that counts as an improvement.
        mode: "max" or "min". Defaults to "min" for "loss", "train_loss" and "log_loss", otherwise "max".

    Example:
        >>> fedra.simulate(algorithm, net, clients, test, rounds=100, callbacks=[EarlyStopping(patience=5)])
    """

    def __init__(
        self, metric: str = "accuracy", *, patience: int = 5, min_delta: float = 0.0, mode: str | None = None
    ) -> None:
        if patience < 1:
            raise ConfigError(f"patience must be at least 1, got {patience}")
        if mode not in (None, "min", "max"):
            raise ConfigError(f"mode must be 'min' or 'max', got {mode!r}")
        self.metric, self.patience, self.min_delta = metric, patience, min_delta
        self._sign = -1.0 if (mode or ("min" if metric.endswith("loss") else "max")) == "min" else 1.0

    def on_run_start(self, run: RunContext) -> None:
        self._check(run)

    def on_evaluation(self, run: RunContext, metrics: dict[str, Any]) -> None:
        if self.metric not in metrics:
            numbers = ", ".join(name for name, value in metrics.items() if isinstance(value, float))
            raise ConfigError(f"the metric of EarlyStopping must be one of {numbers}, got '{self.metric}'")
        self._check(run)

    def _check(self, run: RunContext) -> None:
        best, since = -math.inf, 0
        for line in run.metrics:
            if not is_evaluated(line):
                continue
            value = line.get(self.metric)
            now = -math.inf if value is None else self._sign * value
            best, since = (now, 0) if now > best + self.min_delta else (best, since + 1)
        if since >= self.patience:
            run.stop(f"{self.metric} has not improved for {since} evaluated rounds (best {self._sign * best:.6g})")
