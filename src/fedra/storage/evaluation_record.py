"""The records of `fedra eval`: one file per data set and model, with all protocols evaluated on it."""

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
from fedra.file_reading import read_text_file
from fedra.storage.claims import claim
from fedra.writing import write_json

TEST = "test"
"""The name and the source of a run's own test data in records."""


@dataclass(frozen=True)
class RecordSubject:
    """What a record is about: the source of its data, the relative path of the model's file, and its digest."""

    source: str
    model: str
    fingerprint: str

    @classmethod
    def of(cls, source: str, model: Path | None, folder: Path) -> RecordSubject:
        """`model` is a run's folder, a weight file or a folder of features; None if it need not be identified."""
        if model is None:
            return cls(source, "", "")
        file = model / "model.safetensors" if (model / "model.safetensors").is_file() else model
        # Relative to the record, so a run's folder can be moved.
        return cls(source, os.path.relpath(file.resolve(), folder.resolve()), _digest_of(file))

    def matches(self, record: Mapping[str, Any]) -> bool:
        """Whether a record has the same data and model path; the model's digest may differ."""
        return (record.get("source"), record.get("model")) == (self.source, self.model)


@dataclass(frozen=True)
class RecordLocation:
    """NAME in eval-NAME.json, the protocols that stay in the record, and those of an older model."""

    name: str
    current: dict[str, Any]
    outdated: dict[str, Any]


def locate_record(folder: Path, name: str, about: RecordSubject) -> RecordLocation:
    """Where to write a record: under `name`, with a digest if that name belongs to another data set or model."""
    digest = hashlib.sha256(f"{about.source}\0{about.model}".encode()).hexdigest()[:8]
    with_digest = f"{name}-{digest}"
    for candidate in (with_digest, name):
        found = _read(folder / f"eval-{candidate}.json")
        if found is not None and about.matches(found):
            protocols = dict(found["protocols"])
            same = found.get("fingerprint") == about.fingerprint
            return RecordLocation(candidate, protocols if same else {}, {} if same else protocols)
    free = _read(folder / f"eval-{name}.json") is None and (name != TEST or about.source == TEST)
    return RecordLocation(name if free else with_digest, {}, {})


def _read(path: Path) -> dict[str, Any] | None:
    """A record; None if there is none or it is damaged, so the next one may replace it."""
    try:
        found = json.loads(read_text_file(path))
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and isinstance(found.get("protocols"), dict)
    return found if whole else None


def _digest_of(file: Path) -> str:
    """The SHA-256 of a file; empty for a folder of features."""
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
    """Write folder/eval-NAME.json and the figures eval-NAME-roc.svg and so on; returns the path of the record.

    Other protocols in the record stay if data and `model` are the same. `settings` are recorded with each protocol.
    If the name belongs to another data set or model, a digest is appended.
    """
    about = RecordSubject.of(found.source or found.name, model, folder)
    record = locate_record(folder, found.name, about)
    if record.name != found.name:
        tell(
            console,
            f"eval-{found.name}.json belongs to other data or another model: writing eval-{record.name}.json instead",
        )
    if record.outdated:
        names = ", ".join(record.outdated)
        tell(console, f"the model has changed: removed its earlier {names} from eval-{record.name}.json")
        for name in (name for part in record.outdated.values() for name in part.get("pictures", ())):
            for file in _files_of(record.name, Path(name).name):
                (folder / file).unlink(missing_ok=True)
    drawn = [(name, draw) for outcome in found.outcomes.values() for name, draw in outcome.pictures.items()]
    claim(folder, f"eval-{record.name}.json", *(file for name, _ in drawn for file in _files_of(record.name, name)))
    with steps(console, "drawing", len(drawn)) as done:
        for name, draw in drawn:
            draw(folder / f"eval-{record.name}-{name}")
            done(1)
    path = folder / f"eval-{record.name}.json"
    protocols: dict[str, object] = record.current | {
        name: {
            "table": it.table,
            "metrics": it.metrics,
            "pictures": list(it.pictures),
            "settings": dict(settings or {}),
        }
        for name, it in found.outcomes.items()
    }
    ordered = {name: protocols[name] for name in get_args(Protocol) if name in protocols}
    write_json(path, {"data": found.data, **asdict(about), "protocols": ordered})
    return path


def _files_of(record: str, picture: str) -> tuple[str, str]:
    """Return the file of a picture, and that of the numbers behind it, which pictures of images do not have."""
    file = f"eval-{record}-{picture}"
    return file, str(Path(file).with_suffix(".csv"))
