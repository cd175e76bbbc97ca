"""The metric that a sweep compares: its unit, its direction, and its value at chance level."""

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
"""Suffixes of other summary keys for which smaller is better."""


@dataclass(frozen=True)
class SweepMetric:
    """A key of summary.json, such as final_auroc."""

    key: str = "final_accuracy"

    @property
    def higher(self) -> bool:
        """Whether a larger value is better."""
        known = [metric for metric in METRICS.values() if self.key.endswith(metric.key)]
        return all(metric.higher for metric in known) and not self.key.endswith(LOWER)

    @property
    def factor(self) -> float:
        """Factor for display: fractions are shown in percent, losses unchanged."""
        return 1.0 if self.key.endswith("loss") else 100.0

    @property
    def heading(self) -> str:
        """Column heading of the metric in the table."""
        name = "accuracy" if self.key == "final_accuracy" else self.key
        return f"{name} %" if self.factor == 100 else name

    def axis_label(self, split: str) -> str:
        """Return the label of a plot axis; `split` is the one that rounds are evaluated on, or "" if it varies."""
        name = f"{split} accuracy".strip() if self.key == "final_accuracy" else self.key
        return f"{name} (%)" if self.factor == 100 else name

    def value(self, summary: Mapping[str, Any], folder: Path) -> float:
        """Return the value of a finished run."""
        found = summary.get(self.key)
        if not isinstance(found, int | float):
            numbers = [name for name, value in summary.items() if isinstance(value, float)]
            raise ConfigError(
                f"sweep.metric must be a number in summary.json, got '{self.key}', which is not in '{folder}': "
                f"{nearest(self.key, numbers)}"
            )
        return self.factor * found

    def chance(self, summary: Mapping[str, Any]) -> float:
        """Return the value of a model at chance level, which a failed run counts as."""
        share = float(summary["chance_accuracy"])
        if self.key.endswith("loss"):
            return -math.log(share)
        if self.key.endswith("auroc"):
            return 50.0
        return 0.0 if self.key.endswith("mcc") else self.factor * share

    def best(self, cells: Sequence[tuple[Point, Cell]]) -> str | None:
        """Return a line with the best grid point, or None if there are fewer than two."""
        if len(cells) < 2:
            return None
        point, cell = (max if self.higher else min)(cells, key=lambda one: one[1].mean)
        settings = ", ".join(f"{name} = {short(value)}" for name, value in point.settings)
        return f"best by {self.key}: {settings} ({cell.text()})"
