"""The records of `fedra eval`: protocols on one set gather in one file, and sets of one name keep apart."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEST = "test"
"""The name of a run's own test data, and what its record says of where they are from."""


@dataclass(frozen=True)
class About:
    """What a record is about: where its data are, the model's file as seen from the record, and what is in that."""

    source: str
    model: str
    fingerprint: str

    @classmethod
    def of(cls, source: str, model: Path | None, folder: Path) -> About:
        """The model is a run's folder, a weight file or a folder of features; None where nobody asks for it again."""
        if model is None:
            return cls(source, "", "")
        file = model / "model.safetensors" if (model / "model.safetensors").is_file() else model
        # Seen from the record, so that a run's folder can be moved.
        return cls(source, os.path.relpath(file.resolve(), folder.resolve()), _digest_of(file))

    def matches(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is about these data and this model's file, whatever was in it then."""
        return (record.get("source"), record.get("model")) == (self.source, self.model)


@dataclass(frozen=True)
class Place:
    """A record's name in NAME of eval-NAME.json, the protocols it keeps, and those of a model that is no more."""

    name: str
    kept: dict[str, Any]
    outdated: dict[str, Any]


def place_of(folder: Path, name: str, about: About) -> Place:
    """Where a record goes: under its name, or that and a digest where the name is another set's or model's."""
    digest = hashlib.sha256(f"{about.source}\0{about.model}".encode()).hexdigest()[:8]
    apart = f"{name}-{digest}"
    for candidate in (apart, name):
        found = _read(folder / f"eval-{candidate}.json")
        if found is not None and about.matches(found):
            protocols = dict(found["protocols"])
            same = found.get("fingerprint") == about.fingerprint
            return Place(candidate, protocols if same else {}, {} if same else protocols)
    free = _read(folder / f"eval-{name}.json") is None and (name != TEST or about.source == TEST)
    return Place(name if free else apart, {}, {})


def _read(path: Path) -> dict[str, Any] | None:
    """A record; None where there is none, or a damaged one, which the next may replace."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and isinstance(found.get("protocols"), dict)
    return found if whole else None


def _digest_of(file: Path) -> str:
    """A folder of features has none."""
    if not file.is_file():
        return ""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
