"""A tiny trained model, made-up photographs and a detector that knows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedra
import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.data.decoding import Bytes
from fedra.faces import Detection, FaceRecognizer, KnownPoints, ModelSource, list_photos, read_photo_file
from fedra.faces.synthetic import PhotoSettings, SyntheticFaces, write_photos

SIDE = 32
SETTINGS = PhotoSettings(height=80, width=100, smallest=0.25, largest=0.35)


class Acquainted:
    """A detector that knows the photographs of a folder and finds nobody elsewhere."""

    fingerprint = "acquainted 1"

    def __init__(self, folder: Path) -> None:
        self._groups: dict[bytes, list[Detection]] = {}
        points = KnownPoints(folder / "points.json")
        paths = list_photos(folder)
        self._known = {read_photo_file(path).tobytes(): points.of(path.relative_to(folder)) for path in paths}

    def learn(self, image: Bytes, faces: list[Detection]) -> None:
        """Find these faces in this image from now on."""
        self._groups[image.tobytes()] = faces

    def __call__(self, image: Bytes) -> list[Detection]:
        points = self._known.get(image.tobytes())
        if points is None:
            return self._groups.get(image.tobytes(), [])
        return [Detection(np.concatenate([points.min(axis=0), points.max(axis=0)]), 0.9, points)]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder; its model reads 32x32 in color."""
    config = tiny.table(
        data={"name": "synthetic", "examples": 60, "test_examples": 12, "classes": 3, "shape": [3, SIDE, SIDE]},
        model={"name": "mobilefacenet-tiny", "embedding": 16},
        rounds=1,
    )
    folder = tmp_path_factory.mktemp("model") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Curves, "on_run_end", Callback.on_run_end)
        fedra.run(config, out=folder)
    return folder


@pytest.fixture(scope="session")
def source(model: Path) -> ModelSource:
    return ModelSource(path=str(model))


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four people, three photographs of each, 80x100, and points.json."""
    folder = tmp_path_factory.mktemp("photographs") / "people"
    return write_photos(folder, SyntheticFaces(), identities=4, images=3, settings=SETTINGS)


@pytest.fixture(scope="session")
def detector(photographs: Path) -> Acquainted:
    return Acquainted(photographs)


@pytest.fixture(scope="session")
def recognizer(source: ModelSource, detector: Acquainted) -> FaceRecognizer:
    return FaceRecognizer(source, detector)


@pytest.fixture(scope="session")
def group(photographs: Path, detector: Acquainted) -> Bytes:
    """The first photographs of all four people side by side, whose third face is the largest."""
    paths = [photographs / f"person_{number:05d}/0000.jpg" for number in range(4)]
    images = [read_photo_file(path) for path in paths]
    faces = []
    for number, image in enumerate(images):
        (found,) = detector(image)
        shift = np.array([number * image.shape[1], 0.0])
        grown = np.array([-9.0, -9.0, 9.0, 9.0]) * (number == 2)
        faces.append(Detection(found.box + np.tile(shift, 2) + grown, 0.9 - number / 10, found.landmarks + shift))
    image = np.concatenate(images, axis=1)
    detector.learn(image, faces)
    return image


@pytest.fixture
def known_to_the_commands(detector: Acquainted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every --detector is the acquainted one."""
    monkeypatch.setattr("fedra.faces.photos.detectors.open_detector", lambda name: detector)
    monkeypatch.setattr("fedra.faces.recognition.recognizer.open_detector", lambda name: detector)
