"""What an evaluation of a model found, protocol by protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Draw = Callable[[Path], None]


@dataclass(frozen=True)
class ProtocolResult:
    """Everything for the record, the lines that people read, and pictures by the name of their file."""

    figures: Mapping[str, object]
    table: dict[str, str]
    pictures: dict[str, Draw] = field(default_factory=dict)


Protocol = Literal[
    "classification", "verification", "identification", "open-set", "clients", "training-gallery", "megaface"
]

RUN_ONLY: tuple[Protocol, ...] = ("clients", "training-gallery")
"""Protocols that need the clients of a run."""


@dataclass(frozen=True)
class ModelEvaluation:
    """What was found by each protocol on a set: by its file's name, as people call it, and where it is."""

    name: str
    data: str
    outcomes: dict[Protocol, ProtocolResult]
    source: str = ""


def was_tested(line: Mapping[str, Any]) -> bool:
    """Whether a round's line of metrics.jsonl holds a test, be it one that found collapsed embeddings."""
    return line.get("accuracy") is not None or "collapsed" in line


def collapse_in(metrics: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the last test of a run found collapsed embeddings, if it did."""
    return next((line.get("collapsed") for line in reversed(metrics) if was_tested(line)), None)
