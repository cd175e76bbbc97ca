"""What a kill campaign does: commands on a folder, each of which is called again after a kill until it has finished."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import fedra
import tiny
from fedra.experiment.export import export
from fedra.faces import FaceRecognizer, Gallery, KnownPoints, ModelSource, align_folder
from fedra.faces.synthetic import PhotoSettings, SyntheticFaces, write_photos
from fedra.storage.run_folder import RunFolder

NOTES = "a file of the user's own"


@dataclass(frozen=True)
class Scenario:
    """A command: `prepare` makes the user's files in an empty folder, `act` starts the command or continues it."""

    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path], None]


def _no_files(folder: Path) -> None:
    (folder / "notes.txt").write_text(NOTES)


def _config(**sections: Any) -> dict[str, Any]:
    return tiny.table(
        **{
            "rounds": 6,
            "algorithm": {"name": "scaffold", "plus": ["fedsam"]},
            "cohort": {"fraction": 0.5},
            "diagnostics": {"classes": True, "divergence": True},
            "faults": {"dropout": 0.1, "quorum": 0.5},
            **sections,
        }
    )


def start_or_resume(folder: Path, config: dict[str, Any]) -> None:
    """Train; after a kill do what the user would: resume a run that has begun, start one that has not."""
    run = RunFolder(folder)
    if run.finished:
        return
    if (folder / "config.toml").exists():
        fedra.resume(folder)
    else:
        fedra.run(config, out=folder)


def _train(folder: Path) -> None:
    start_or_resume(folder / "run", _config())


def _train_in_workers(folder: Path) -> None:
    start_or_resume(folder / "run", _config(runner={"name": "processes", "workers": 2}))


@cache
def short_run() -> Path:
    """A finished run of two rounds, made once for all trials."""
    return _keep("short", lambda folder: fedra.run(_config(rounds=2), out=folder))


@cache
def face_model() -> Path:
    """A run whose model reads faces of 32 x 32 pixels, made once for all trials."""
    config = tiny.table(
        data={"name": "synthetic", "examples": 60, "test_examples": 12, "classes": 3, "shape": [3, 32, 32]},
        model={"name": "mobilefacenet-tiny", "embedding": 16},
        rounds=1,
    )
    return _keep("model", lambda folder: fedra.run(config, out=folder))


@cache
def people() -> Path:
    """Four people, three photographs of each, with their landmarks; made once for all trials."""
    settings = PhotoSettings(height=80, width=100, smallest=0.25, largest=0.35)
    return _keep(
        "people", lambda folder: write_photos(folder, SyntheticFaces(), identities=4, images=3, settings=settings)
    )


KEPT: list[Path] = []
"""The folder for what is made once; the campaign sets it."""


def _keep(name: str, make: Callable[[Path], object]) -> Path:
    folder = KEPT[0] / name
    make(folder)
    return folder


def _with_short_run(folder: Path) -> None:
    _no_files(folder)
    shutil.copytree(short_run(), folder / "run")


def _extend(folder: Path) -> None:
    run = RunFolder(folder / "run")
    if run.config().rounds < 5:
        fedra.resume(folder / "run", rounds=5)
    elif not run.finished:
        fedra.resume(folder / "run")


def _sweep(folder: Path) -> None:
    grid = {"local.lr": [0.1, 0.05]}
    fedra.sweep(tiny.table(rounds=2), grid, seeds=2, out=folder / "sweep")


def _with_photos(folder: Path) -> None:
    shutil.copytree(people(), folder / "photos")
    (folder / "crops" / "person_00000").mkdir(parents=True)
    (folder / "crops" / "person_00000" / "0001.jpg").write_text(NOTES)


def _align(folder: Path) -> None:
    align_folder(folder / "photos", folder / "crops", KnownPoints(folder / "photos" / "points.json"), size=48)


def _with_gallery(folder: Path) -> None:
    shutil.copytree(people(), folder / "photos")
    gallery = Gallery.open(folder / "staff.gallery", _recognizer(folder))
    gallery.enroll("Ada", folder / "photos" / "person_00003")
    gallery.enroll("Grace", folder / "photos" / "person_00002")


def _recognizer(folder: Path) -> FaceRecognizer:
    points = KnownPoints(people() / "points.json", folder / "photos")
    return FaceRecognizer(ModelSource(path=str(face_model())), points)


def _enroll(folder: Path) -> None:
    """Enroll people one by one and remove one; who was enrolled before must be there whatever happens."""
    gallery = Gallery.open(folder / "staff.gallery", _recognizer(folder))
    assert "Ada" in gallery.names, "Ada was enrolled and is gone"
    for number in range(3):
        gallery.enroll(f"person {number}", folder / "photos" / f"person_{number:05d}", existing="replace")
    if "Grace" in gallery.names:
        gallery.remove("Grace")


def _with_model(folder: Path) -> None:
    _no_files(folder)
    face_model()


def _export(folder: Path) -> None:
    written = (folder / "face.onnx").exists() or (folder / "face.md").exists()
    export(face_model(), folder / "face.onnx", force=written)


SCENARIOS = (
    Scenario("run", _no_files, _train),
    Scenario("workers", _no_files, _train_in_workers),
    Scenario("extend", _with_short_run, _extend),
    Scenario("sweep", _no_files, _sweep),
    Scenario("align", _with_photos, _align),
    Scenario("enroll", _with_gallery, _enroll),
    Scenario("export", _with_model, _export),
)
