"""What callbacks receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Report:
    """One finished round: a line for metrics.jsonl, lines for clients.jsonl, and the examples seen."""

    metrics: dict[str, Any]
    clients: list[dict[str, Any]]
    examples: int
