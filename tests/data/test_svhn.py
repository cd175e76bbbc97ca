from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from fedra.data import load
from fedra.errors import DataError

IMAGES = np.random.default_rng(2).integers(0, 256, (32, 32, 3, 11), dtype=np.uint8)
LABELS = np.array([10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], dtype=np.uint8)[:, None]


def write_set(folder: Path, labels: np.ndarray = LABELS) -> None:
    folder.mkdir(exist_ok=True)
    savemat(folder / "train_32x32.mat", {"X": IMAGES, "y": labels}, do_compression=True)
    savemat(folder / "test_32x32.mat", {"X": IMAGES[..., :4], "y": labels[:4]})


@pytest.mark.parametrize("folder", ["svhn", "."])
def test_reads_back_exactly_with_ten_as_zero(tmp_path: Path, folder: str) -> None:
    write_set(tmp_path / folder)
    dataset = load("svhn", root=tmp_path)
    assert dataset.train.targets.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert torch.equal(dataset.train.inputs, torch.from_numpy(IMAGES.transpose(3, 2, 0, 1).copy()))
    assert len(dataset.test) == 4
    assert dataset.augment == ("crop", "flip")
    assert dataset.notes.keys() == {"altered"}  # not the official files


def test_the_official_quirk_wraps_pixels(tmp_path: Path) -> None:
    write_set(tmp_path / "svhn")
    true = load("svhn", root=tmp_path)
    quirk = load("svhn", root=tmp_path, official_quirk=True)
    for a, b in ((true.train, quirk.train), (true.test, quirk.test)):
        assert torch.equal(b.inputs.int(), (-a.inputs.int()) % 256)
        assert torch.equal(a.targets, b.targets)
    assert "inverted" in quirk.notes["pixels"]


@pytest.mark.parametrize(
    "content",
    [{"X": IMAGES}, {"X": IMAGES.astype(float), "y": LABELS}, {"X": IMAGES[:30], "y": LABELS}, {"y": LABELS}],
)
def test_wrong_variables_are_named(tmp_path: Path, content: dict[str, np.ndarray]) -> None:
    write_set(tmp_path / "svhn")
    savemat(tmp_path / "svhn" / "test_32x32.mat", content)
    with pytest.raises(DataError, match=r"test_32x32.mat must contain X"):
        load("svhn", root=tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write_set(tmp_path / "svhn")
    file = tmp_path / "svhn" / "train_32x32.mat"
    whole = file.read_bytes()
    for damaged in (b"", b"<html></html>", whole[: len(whole) // 2], whole[:100] + b"\xff" * 60 + whole[160:]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"train_32x32.mat"):
            load("svhn", root=tmp_path)


def test_labels_out_of_range(tmp_path: Path) -> None:
    write_set(tmp_path / "svhn", LABELS + 1)
    with pytest.raises(DataError, match=r"train_32x32.mat must have labels between 0 and 9, got 11"):
        load("svhn", root=tmp_path)
