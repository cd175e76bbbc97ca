"""The figure of a summary that a sweep compares: its unit, its direction, and its value at chance level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedra.errors import ConfigError, nearest
from fedra.evaluation.classifier_metrics import METRICS
from fedra.reports.sweep_table import Cell, Point, short

LOWER = ("loss", "eer")
"""Figures that are not metrics by name and are better when they are small."""


@dataclass(frozen=True)
class SweepMetric:
    """A key of summary.json, such as final_auroc."""

    key: str = "final_accuracy"

    @property
    def higher(self) -> bool:
        """Whether larger is better."""
        known = [metric for metric in METRICS.values() if self.key.endswith(metric.key)]
        return all(metric.higher for metric in known) and not self.key.endswith(LOWER)

    @property
    def factor(self) -> float:
        """Shares are shown in percent, losses as they are."""
        return 1.0 if self.key.endswith("loss") else 100.0

    @property
    def heading(self) -> str:
        """As the table calls it."""
        name = "accuracy" if self.key == "final_accuracy" else self.key
        return f"{name} %" if self.factor == 100 else name

    def value(self, summary: Mapping[str, Any], folder: Path) -> float:
        """The figure of a finished run."""
        found = summary.get(self.key)
        if not isinstance(found, int | float):
            numbers = [name for name, value in summary.items() if isinstance(value, float)]
            raise ConfigError(f"the summary in '{folder}' has no number '{self.key}': {nearest(self.key, numbers)}")
        return self.factor * found

    def chance(self, summary: Mapping[str, Any]) -> float:
        """The figure of a model that guesses, which a failed run counts as."""
        share = float(summary["chance_accuracy"])
        if self.key.endswith("loss"):
            return -math.log(share)
        if self.key.endswith("auroc"):
            return 50.0
        return 0.0 if self.key.endswith("mcc") else self.factor * share

    def best(self, cells: Sequence[tuple[Point, Cell]]) -> str | None:
        """The best point in one line; None where there is nothing to choose from."""
        if len(cells) < 2:
            return None
        point, cell = (max if self.higher else min)(cells, key=lambda one: one[1].mean)
        settings = ", ".join(f"{name} = {short(value)}" for name, value in point.settings)
        return f"best by {self.key}: {settings} ({cell.text()})"
