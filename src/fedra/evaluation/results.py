"""What an evaluation of a model found, protocol by protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
