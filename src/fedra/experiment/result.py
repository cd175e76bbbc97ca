"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run.

    Args:
        model: The trained global model: your own module with its parameter names, or the configured network.
        metrics: One dict per round, as in metrics.jsonl.
        summary: The content of summary.json: status, accuracies, traffic, versions and final tests.
        folder: The run's folder, or None if no files were written.

    Returns:
        A result whose arguments are its attributes.

    Example:
        >>> result = fedra.run("configs/quickstart.toml")
        >>> result.summary["final_accuracy"], result.metrics[-1]["train_loss"]
    """

    model: nn.Module
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def __repr__(self) -> str:
        final = self.summary.get("final_accuracy")
        untested = "embeddings collapsed" if "collapsed" in self.summary else "not tested"
        accuracy = untested if final is None else f"accuracy {final:.2%}"
        where = "" if self.folder is None else f", folder='{self.folder}'"
        rounds = f"{len(self.metrics)} round{'s' * (len(self.metrics) != 1)}"
        return f"RunResult({type(self.model).__name__}, {rounds}, {accuracy}{where})"
