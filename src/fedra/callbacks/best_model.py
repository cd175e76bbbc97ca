"""The model of the best round so far, kept in memory and in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedra.core.model import Weights
from fedra.evaluation.classifier_metrics import Metric
from fedra.storage.checkpoint import load_model, save_model

BEST_MODEL = "model-best.safetensors"


class BestModel:
    """Keeps the weights of the round that a metric likes best.

    With a folder the weights are written there whenever a round improves, so a resumed run still has them.
    """

    def __init__(self, metric: Metric, folder: Path | None, about: Mapping[str, Any]) -> None:
        self.metric, self.round = metric, 0
        self.value: float | None = None
        self._path = None if folder is None else folder / BEST_MODEL
        self._about = dict(about)
        self._weights: Weights | None = None

    def restore(self) -> None:
        """Go on from what an earlier process wrote into the folder, where it did."""
        if self._path is None or not self._path.exists():
            return
        _, about = load_model(self._path)
        self.round, self.value = int(about["round"]), float(about["value"])

    def see(self, line: Mapping[str, Any], weights: Weights) -> None:
        """Look at a finished round: its line, and the model it left."""
        value = line.get(self.metric.key)
        if value is None:
            return
        if not self.metric.improves(value, self.value) and line["round"] != self.round:
            return  # a resumed run may train the best round once more
        self.round, self.value, self._weights = line["round"], value, weights
        if self._path is not None:
            save_model(self._path, weights, {**self._about, "round": self.round, "value": value})

    def weights(self, like: Weights) -> Weights | None:
        """The best round's weights; `like` tells parameters and buffers apart in a file. None before any test."""
        if self._weights is None and self._path is not None and self._path.exists():
            flat, _ = load_model(self._path)
            self._weights = Weights(*({name: flat[name] for name in group} for group in like))
        return self._weights
