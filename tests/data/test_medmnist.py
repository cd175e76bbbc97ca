from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fedra
import tiny
from fedra.data import DATASETS, load
from fedra.data.download import locate, noting_altered
from fedra.data.loading import ALTERED
from fedra.data.sets.medmnist import SETS
from fedra.errors import DataError


def arrays(*, channels: int = 3, classes: int = 9) -> dict[str, Any]:
    draw = np.random.default_rng(3)
    content: dict[str, Any] = {}
    for part, count in (("train", 9), ("val", 4), ("test", 5)):
        shape = (count, 28, 28, 3) if channels == 3 else (count, 28, 28)
        content[f"{part}_images"] = draw.integers(0, 256, shape, dtype=np.uint8)
        content[f"{part}_labels"] = draw.integers(0, classes, (count, 1), dtype=np.uint8)
    return content


def write(root: Path, name: str, content: dict[str, Any]) -> Path:
    folder = root / "medmnist"
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / f"{name}.npz", **content)
    return folder / f"{name}.npz"


def test_color_set_with_and_without_validation(tmp_path: Path) -> None:
    content = arrays()
    write(tmp_path, "pathmnist", content)
    whole = load("pathmnist", root=tmp_path)
    images = np.concatenate([content["train_images"], content["val_images"]]).transpose(0, 3, 1, 2)
    labels = np.concatenate([content["train_labels"], content["val_labels"]]).ravel()
    assert np.array_equal(whole.train.inputs.numpy(), images)
    assert np.array_equal(whole.train.targets.numpy(), labels)
    assert whole.augment == ("flip",)
    assert whole.mean == (0.5, 0.5, 0.5)
    part = load("pathmnist", root=tmp_path, use_validation=False)
    assert len(part.train) == 9
    assert torch.equal(part.test.inputs, whole.test.inputs)


def test_gray_set_and_three_channels(tmp_path: Path) -> None:
    content = arrays(channels=1, classes=8)
    write(tmp_path, "tissuemnist", content)
    gray = load("tissuemnist", root=tmp_path)
    assert gray.shape == (1, 28, 28)
    assert gray.mean == (0.5,)
    assert np.array_equal(gray.test.inputs[:, 0].numpy(), content["test_images"])
    color = load("tissuemnist", root=tmp_path, rgb=True)
    assert color.shape == (3, 28, 28)
    assert color.mean == (0.5, 0.5, 0.5)
    assert torch.equal(color.train.inputs, gray.train.inputs.expand(-1, 3, -1, -1))


def test_every_set_is_registered_with_its_own_checksum() -> None:
    assert {medical.name for medical in SETS} <= set(DATASETS)
    assert len({medical.md5 for medical in SETS}) == len(SETS) == 11
    assert all(len(medical.md5) == 32 for medical in SETS)
    assert "kidney" in DATASETS.summary("tissuemnist")


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    content = arrays()
    content["val_labels"] = np.array([[1], [2, 3], None, "x"], dtype=object)
    write(tmp_path, "pathmnist", content)
    with pytest.raises(DataError, match=r"'val_labels' in .*pathmnist.npz' must contain numbers .* got object"):
        load("pathmnist", root=tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train_images", np.zeros((9, 28, 28), np.float32), "must contain uint8 images"),
        ("train_images", np.zeros((9, 28, 28, 4), np.uint8), "must contain uint8 images"),
        ("test_labels", np.zeros((5, 14), np.uint8), "one integer label"),
        ("test_labels", np.zeros((5, 1), np.float32), "one integer label"),
        ("val_labels", np.full((4, 1), 9, np.uint8), "must have labels between 0 and 8, got 9"),
        ("val_labels", np.zeros((3, 1), np.uint8), "as many images as labels, got 4 and 3"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, key: str, value: np.ndarray, message: str) -> None:
    write(tmp_path, "pathmnist", {**arrays(), key: value})
    with pytest.raises(DataError, match=rf"pathmnist.npz .*{message}"):
        load("pathmnist", root=tmp_path)


def test_missing_array_and_damaged_file(tmp_path: Path) -> None:
    content = arrays()
    del content["val_images"]
    file = write(tmp_path, "pathmnist", content)
    with pytest.raises(DataError, match=r"pathmnist.npz must contain the array val_images of MedMNIST"):
        load("pathmnist", root=tmp_path)
    whole = write(tmp_path, "pathmnist", arrays()).read_bytes()
    flipped = bytearray(whole)
    flipped[2000] ^= 0xFF
    for damaged in (b"", b"<html>", whole[:-500], bytes(flipped)):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"pathmnist.npz' is not a readable"):
            load("pathmnist", root=tmp_path)


def test_an_altered_file_under_an_official_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "pathmnist", arrays())
    assert f"the checksum of '{path}' differs" in load("pathmnist", root=tmp_path).notes[ALTERED]
    monkeypatch.setenv("FEDRA_DATA", str(tmp_path))
    table = tiny.table(rounds=1, data={"name": "pathmnist"}, partition="iid", model="logistic")
    fedra.run({**table, "partition": {"name": "iid", "clients": 2}}, console=Console(width=400))
    assert "is not the official one: the checksum of" in capsys.readouterr().out
    official = replace(SETS[0], md5=hashlib.md5(path.read_bytes()).hexdigest())
    assert official.name == "pathmnist"
    with noting_altered() as altered:
        assert locate(official.file, (tmp_path / "medmnist",)) == path
        assert not altered
        os.utime(path, ns=(1, 1))
        path.write_bytes(path.read_bytes() + b"0")
        locate(official.file, (tmp_path / "medmnist",))
    assert altered == [path]
