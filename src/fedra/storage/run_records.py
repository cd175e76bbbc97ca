"""The lines of metrics.jsonl and clients.jsonl and the content of summary.json, checked before anything uses them."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedra.errors import shorten_requirement

MOST = 10**15
"""Largest absolute value of a count or a sum in a record."""

Amount = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Fraction = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


class CheckedRecord(BaseModel):
    """A record whose known keys have the right types; other keys are the business of those who read them."""

    model_config = ConfigDict(extra="allow", strict=True)


class RoundLine(CheckedRecord):
    """A line of metrics.jsonl."""

    round: Annotated[int, Field(ge=1, le=MOST)]
    accuracy: Fraction | None = None
    seconds: Amount | None = None
    bytes_up: Amount | None = None
    bytes_down: Amount | None = None
    train_loss: float | None = None
    epsilon: float | None = None
    restarted: Count | None = None
    collapsed: str | None = None
    class_accuracy: list[float | None] | None = None


class ClientLine(CheckedRecord):
    """A line of clients.jsonl."""

    round: Annotated[int, Field(ge=1, le=MOST)]
    client: Count | None = None
    examples: Count | None = None
    update_norm: float | None = None
    dropped: str | None = None


class SiteLine(CheckedRecord):
    """A line of sites.jsonl."""

    round: Annotated[int, Field(ge=1, le=MOST)]


class SummaryRecord(CheckedRecord):
    """The content of summary.json and interim.json."""

    status: str | None = None
    algorithm: str | None = None
    protocol: str | None = None
    rounds: Count | None = None
    seconds: Amount | None = None
    parameters: Count | None = None
    clients: Count | None = None
    bytes_up: Amount | None = None
    bytes_down: Amount | None = None
    final_accuracy: Fraction | None = None
    best_accuracy: Fraction | None = None
    chance_accuracy: Fraction | None = None
    personalized_accuracy: Fraction | None = None
    collapsed: str | None = None
    ending: str | None = None
    versions: dict[str, str] | None = None
    privacy: dict[str, Any] | None = None
    model_digest: str | None = None


REQUIRED: dict[type[CheckedRecord], tuple[str, ...]] = {
    RoundLine: ("round", "accuracy", "seconds", "bytes_down"),
    ClientLine: ("round", "client"),
    SiteLine: ("round",),
    SummaryRecord: ("status", "algorithm", "protocol", "rounds", "seconds", "parameters", "clients", "bytes_up"),
}
"""Keys that every record of a kind has."""

LINES: dict[str, type[CheckedRecord]] = {
    "metrics.jsonl": RoundLine,
    "clients.jsonl": ClientLine,
    "sites.jsonl": SiteLine,
}
"""The kind of line of every .jsonl file of a run."""


def parse_record(kind: type[CheckedRecord], text: bytes) -> dict[str, Any]:
    """Parse a record; raise ValueError with the first thing that is wrong."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("it must be a table")
    for key in REQUIRED[kind]:
        if key not in found:
            raise ValueError(f"{key} must be set")
    try:
        kind.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{key} must be {shorten_requirement(first['msg'])}") from None
    return found
