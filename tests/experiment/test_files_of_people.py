"""Class vectors and names of people leave a run only when asked for; files that hold them are their owner's alone."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import onnx
import pytest

import fedra
from fedra.callbacks.callback import Callback
from fedra.errors import RunError
from tiny import call, table

FACES = {
    "data": {"name": "synthetic-faces", "identities": 4, "images": 6, "size": 32, "test_identities": 4},
    "partition": {"name": "identity", "clients": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedpe"},
    "evaluation": {"protocol": "classification"},
    "rounds": 2,
}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class Stop(Callback):
    """Interrupts a run after its first round."""

    def on_round_end(self, run: Any, metrics: dict[str, Any]) -> None:
        raise KeyboardInterrupt


def test_every_model_file_of_people_is_its_owners_alone(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="interrupted"):
        fedra.run(table(**FACES), out=tmp_path / "interrupted", callbacks=[Stop()])
    validated = {**FACES, "evaluation": {"protocol": "classification", "validation": 0.2}}
    fedra.run(table(**validated), out=tmp_path / "best")
    files = [tmp_path / "interrupted/model.safetensors", tmp_path / "best/model.safetensors"]
    files += [tmp_path / "best/model-best.safetensors", *(tmp_path / "best/checkpoint").rglob("*.safetensors")]
    assert len(files) > 3
    assert {mode(path) for path in files} == {0o600}


def test_an_export_has_class_vectors_and_names_only_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedra.run(table(**FACES), out=tmp_path / "run")
    assert call(capsys, "export", tmp_path / "run", tmp_path / "net.onnx")[0] == 0
    exported = (tmp_path / "net.onnx").read_bytes() + (tmp_path / "net.md").read_bytes()
    assert b"person 0000" not in exported
    assert str(tmp_path).encode() not in exported
    shapes = [tuple(value.dims) for value in onnx.load(tmp_path / "net.onnx").graph.initializer]
    assert not any(len(shape) == 2 and 4 in shape for shape in shapes)  # four people: no matrix of their vectors
    code, _, warned = call(capsys, "export", tmp_path / "run", tmp_path / "head.onnx", "--head")
    assert code == 0
    assert "class vector of each of 4 people" in warned
    assert mode(tmp_path / "head.onnx") == 0o600
    assert b"person 0000" in (tmp_path / "head.onnx").read_bytes()


def test_the_records_of_a_run_name_no_one(tmp_path: Path) -> None:
    fedra.run(table(**FACES), out=tmp_path / "run")
    for name in ("summary.json", "metrics.jsonl", "clients.jsonl", "config.toml", "data.json"):
        text = (tmp_path / "run" / name).read_text(encoding="utf-8")
        assert "person 0000" not in text
        assert str(tmp_path) not in text


def test_embeddings_of_people_are_their_owners_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fedra.run(table(**FACES), out=tmp_path / "run")
    assert call(capsys, "embed", tmp_path / "run", "--split", "train")[0] == 0
    assert mode(tmp_path / "run/embeddings-train.safetensors") == 0o600


def test_a_threshold_does_not_tell_where_its_photographs_are(tmp_path: Path) -> None:
    from PIL import Image

    from fedra.faces import FaceRecognizer
    from fedra.faces.recognition.calibrate import calibrate

    fedra.run(table(**FACES), out=tmp_path / "run")
    images = fedra.data.load("synthetic-faces", identities=6, images=4, size=32, test_fraction=0.25).train
    for index, (image, person) in enumerate(zip(images.inputs, images.targets.tolist(), strict=True)):
        folder = tmp_path / "others" / f"person {person}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{index}.png")
    calibrate(FaceRecognizer(tmp_path / "run"), tmp_path / "others", far=0.1)
    stored = (tmp_path / "run/threshold.json").read_text(encoding="utf-8")
    assert json.loads(stored)["data"] == "others"
    assert str(tmp_path) not in stored


def test_a_gallery_does_not_tell_where_its_model_is_and_moves_with_it(tmp_path: Path) -> None:
    from fedra.faces import FaceRecognizer, Gallery

    fedra.run(table(**FACES), out=tmp_path / "here" / "run")
    image = fedra.data.load("synthetic-faces", identities=2, images=4, size=32, test_fraction=0.25).train.inputs[0]
    gallery = Gallery.open(tmp_path / "here" / "staff.gallery", FaceRecognizer(tmp_path / "here" / "run"))
    gallery.enroll("Ada", [image.permute(1, 2, 0).numpy()])
    file = tmp_path / "here" / "staff.gallery"
    assert str(tmp_path).encode() not in file.read_bytes()
    assert mode(file) == 0o600
    (tmp_path / "here").rename(tmp_path / "there")
    moved = Gallery.open(tmp_path / "there" / "staff.gallery")
    assert moved.names == ("Ada",)
