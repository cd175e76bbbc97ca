"""The records of `fedra eval`: protocols on one set gather in one file, and sets of one name keep apart."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from fedra.console import steps, tell
from fedra.evaluation.results import ModelEvaluation, Protocol
from fedra.storage.claims import claim
from fedra.writing import write_json

TEST = "test"
"""The name of a run's own test data, and what its record says of where they are from."""


@dataclass(frozen=True)
class RecordSubject:
    """What a record is about: where its data are, the model's file as seen from the record, and what is in that."""

    source: str
    model: str
    fingerprint: str

    @classmethod
    def of(cls, source: str, model: Path | None, folder: Path) -> RecordSubject:
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
class RecordPlace:
    """A record's name in NAME of eval-NAME.json, the protocols it keeps, and those of a model that is no more."""

    name: str
    kept: dict[str, Any]
    outdated: dict[str, Any]


def place_of(folder: Path, name: str, about: RecordSubject) -> RecordPlace:
    """Where a record goes: under its name, or that and a digest where the name is another set's or model's."""
    digest = hashlib.sha256(f"{about.source}\0{about.model}".encode()).hexdigest()[:8]
    apart = f"{name}-{digest}"
    for candidate in (apart, name):
        found = _read(folder / f"eval-{candidate}.json")
        if found is not None and about.matches(found):
            protocols = dict(found["protocols"])
            same = found.get("fingerprint") == about.fingerprint
            return RecordPlace(candidate, protocols if same else {}, {} if same else protocols)
    free = _read(folder / f"eval-{name}.json") is None and (name != TEST or about.source == TEST)
    return RecordPlace(name if free else apart, {}, {})


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


def write_evaluation(
    found: ModelEvaluation,
    folder: Path,
    console: Console | None = None,
    *,
    model: Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> Path:
    """folder/eval-NAME.json and the pictures, eval-NAME-roc.svg and so on.

    Protocols that the record has of the same data and `model` stay in it; each says by which `settings`. Where
    the name is another set's or model's, a digest follows it.
    """
    about = RecordSubject.of(found.source or found.name, model, folder)
    place = place_of(folder, found.name, about)
    if place.name != found.name:
        told = f"eval-{found.name}.json is kept for other data or another model"
        tell(console, f"{told}: this record is eval-{place.name}.json")
    if place.outdated:
        told = ", ".join(place.outdated)
        tell(console, f"the model has changed since: eval-{place.name}.json no longer has its {told} of before")
        for name in (name for part in place.outdated.values() for name in part.get("pictures", ())):
            (folder / f"eval-{place.name}-{Path(name).name}").unlink(missing_ok=True)
    drawn = [(name, draw) for outcome in found.outcomes.values() for name, draw in outcome.pictures.items()]
    claim(folder, f"eval-{place.name}.json", *(f"eval-{place.name}-{name}" for name, _ in drawn))
    with steps(console, "drawing", len(drawn)) as done:
        for name, draw in drawn:
            draw(folder / f"eval-{place.name}-{name}")
            done(1)
    path = folder / f"eval-{place.name}.json"
    protocols: dict[str, object] = place.kept | {
        name: {
            "table": it.table,
            "figures": it.figures,
            "pictures": list(it.pictures),
            "settings": dict(settings or {}),
        }
        for name, it in found.outcomes.items()
    }
    ordered = {name: protocols[name] for name in get_args(Protocol) if name in protocols}
    write_json(path, {"data": found.data, **asdict(about), "protocols": ordered})
    return path
