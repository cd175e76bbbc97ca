"""Results of evaluation protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Draw = Callable[[Path], None]


@dataclass(frozen=True)
class ProtocolResult:
    """The result of one evaluation protocol.

    Args:
        metrics: All metrics, as the evaluation file stores them.
        table: Rows of the printed table: label and formatted value.
        pictures: Functions that draw a plot to a path, by file name.

    Example:
        ```python
        result = fedra.evaluate("runs/a").outcomes["classification"]
        print(result.metrics["accuracy"])
        ```
    """

    metrics: Mapping[str, object]
    table: dict[str, str]
    pictures: dict[str, Draw] = field(default_factory=dict)


Protocol = Literal[
    "classification", "verification", "identification", "open-set", "clients", "training-gallery", "megaface"
]

RUN_ONLY: tuple[Protocol, ...] = ("clients", "training-gallery")
"""Protocols that need the clients of a run."""


@dataclass(frozen=True)
class ModelEvaluation:
    """The results of all protocols on one data set.

    Args:
        name: Short name of the data set, used in file names.
        data: Name of the data set as printed.
        outcomes: Result of each protocol.
        source: Where the data set is stored.

    Example:
        ```python
        evaluation = fedra.evaluate("runs/a", on="lfw")
        for protocol, result in evaluation.outcomes.items():
            print(protocol, result.table)
        ```
    """

    name: str
    data: str
    outcomes: dict[Protocol, ProtocolResult]
    source: str = ""


def is_evaluated(line: Mapping[str, Any]) -> bool:
    """Return whether a line of metrics.jsonl has an evaluation, even one with collapsed embeddings."""
    return line.get("accuracy") is not None or "collapsed" in line


def find_collapse(metrics: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why the last evaluation of a run found collapsed embeddings, or None."""
    return next((line.get("collapsed") for line in reversed(metrics) if is_evaluated(line)), None)
