"""Stores the model of the best round in memory and in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedra.callbacks.callback import Callback, RunContext
from fedra.core.model import Weights
from fedra.evaluation.classifier_metrics import Metric
from fedra.storage.checkpoint import load_model, save_model
from fedra.storage.claims import claim

BEST_MODEL = "model-best.safetensors"


class BestModel(Callback):
    """Store the weights of the round with the best value of a metric.

    If the run has a folder, the weights are written before the checkpoint of the round, so a resumed run has them.
    """

    def __init__(self, metric: Metric, about: Mapping[str, Any], private: bool = False) -> None:
        self.metric, self.round = metric, 0
        self._private = private  # whether only the owner may read the file: it holds class vectors of people
        self.value: float | None = None
        self._path: Path | None = None
        self._about = dict(about)
        self._weights: Weights | None = None

    def on_run_start(self, run: RunContext) -> None:
        """Read the best round from the folder if the run is resumed."""
        if run.folder is None:
            return
        self._path = run.folder / BEST_MODEL
        if run.round and self._path.exists():
            _, about = load_model(self._path)
            self.round, self.value = int(about["round"]), float(about["value"])

    def on_evaluation(self, run: RunContext, metrics: dict[str, Any]) -> None:
        """Store the model if the evaluated round is the best so far."""
        value = metrics.get(self.metric.key)
        if value is None:
            return
        if not self.metric.improves(value, self.value) and metrics["round"] != self.round:
            return  # a resumed run may repeat the best round, whose value equals the stored one
        self.round, self.value, self._weights = metrics["round"], value, run.weights
        if run.folder is not None and self._path is not None:
            claim(run.folder, BEST_MODEL)
            about = {**self._about, "round": self.round, "value": value}
            save_model(self._path, run.weights, about, self._private)

    def weights(self, like: Weights) -> Weights | None:
        """Return the weights of the best round, split into parameters and buffers as in `like`, or None."""
        if self._weights is None and self._path is not None and self._path.exists():
            flat, _ = load_model(self._path)
            self._weights = Weights(*({name: flat[name] for name in group} for group in like))
        return self._weights
