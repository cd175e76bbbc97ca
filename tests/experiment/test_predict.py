"""`fedra predict`: the answers of a classifier, prepared as in training."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedra
import tiny
from fedra.errors import ConfigError, DataError
from tiny import call, mistake


@pytest.fixture(scope="module")
def shades(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark and light images, and a run that has learned to tell them apart."""
    base = tmp_path_factory.mktemp("shades")
    draw = np.random.default_rng(0)
    for name, level in (("dark", 40), ("light", 210)):
        (base / "images" / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.clip(draw.normal(level, 12, (8, 8)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(base / "images" / name / f"{number:02}.png")
    data = {"name": "imagefolder", "path": str(base / "images"), "size": 8, "gray": True}
    table = tiny.table(data=data, partition={"name": "iid", "clients": 2}, rounds=6, local={"batch": 5, "lr": 0.2})
    fedra.run(table, out=base / "run")
    return base


def test_every_image_gets_the_class_of_its_folder(shades: Path) -> None:
    found = fedra.predict(shades / "run", shades / "images")
    assert [one.image.name for one in found] == [f"{number:02}.png" for number in range(20)] * 2
    assert [one.classes for one in found] == [("dark",)] * 20 + [("light",)] * 20
    assert all(one.probabilities[0] > 0.5 for one in found)
    (both,) = fedra.predict(shades / "run", [str(shades / "images" / "dark" / "00.png")], top=5)
    assert both.classes == ("dark", "light")
    assert sum(both.probabilities) == pytest.approx(1.0)


def test_images_of_another_size_and_color_are_fitted_and_damaged_ones_reported(shades: Path, tmp_path: Path) -> None:
    Image.new("RGB", (30, 30), (220, 215, 210)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    first, second = fedra.predict(shades / "run", tmp_path)
    assert first.classes == ("light",)
    assert second.classes == ()
    assert "cannot identify" in second.problem


def test_the_command_prints_and_saves(shades: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "answers.csv"
    code, shown, _ = call(capsys, "predict", shades / "run", shades / "images", "--top", "2", "--out", out)
    assert code == 0
    assert "light" in shown
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 80
    assert [row["class"] for row in rows[:2]] == ["dark", "light"]


def test_mistakes_are_one_sentence(shades: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="does not exist"):
        fedra.predict(shades / "run", tmp_path / "missing.png")
    with pytest.raises(DataError, match="must contain images, got none"):
        fedra.predict(shades / "run", tmp_path)
    fedra.run(tiny.table(rounds=1), out=tmp_path / "vectors")
    assert "must be a classifier of images" in mistake(capsys, "predict", tmp_path / "vectors", shades / "images")
    private = {"name": "fedavg", "plus": [{"name": "sharing", "private": ["head."]}]}
    fedra.run(tiny.table(rounds=1, algorithm=private), out=tmp_path / "private")
    with pytest.raises(ConfigError, match="must have a shared head"):
        fedra.predict(tmp_path / "private", shades / "images")


def test_it_is_what_the_model_computes(shades: Path) -> None:
    """Against a pass through the network by hand."""
    from fedra.storage.trained_model import load_trained_model

    trained = load_trained_model(shades / "run")
    path = shades / "images" / "light" / "03.png"
    pixels = torch.from_numpy(np.asarray(Image.open(path)).copy())[None, None]
    scaled = (pixels.float() / 255 - torch.tensor(trained.mean or (0.0,))) / torch.tensor(trained.std or (1.0,))
    with torch.no_grad():
        wanted = trained.module.eval()(scaled).softmax(dim=1)
    (found,) = fedra.predict(shades / "run", path)
    assert found.probabilities[0] == pytest.approx(float(wanted.max()), abs=1e-5)
