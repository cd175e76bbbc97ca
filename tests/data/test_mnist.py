from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from fedra.data import load
from fedra.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 10


def idx(values: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.tobytes()


def write_set(folder: Path, *, compressed: bool = True) -> None:
    folder.mkdir(parents=True)
    for part, count in (("train", 12), ("t10k", 5)):
        for kind, values in (("images-idx3", IMAGES[:count]), ("labels-idx1", LABELS[:count])):
            path = folder / f"{part}-{kind}-ubyte{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(idx(values)) if compressed else idx(values))


@pytest.mark.parametrize(
    ("name", "folder", "compressed"),
    [
        ("mnist", "mnist", True),
        ("mnist", "mnist", False),
        ("mnist", "MNIST/raw", False),
        ("fashion-mnist", "fashion-mnist", True),
        ("fashion-mnist", "FashionMNIST/raw", True),
    ],
)
def test_reads_back_what_was_written(tmp_path: Path, name: str, folder: str, compressed: bool) -> None:
    write_set(tmp_path / folder, compressed=compressed)
    dataset = load(name, root=tmp_path)
    assert dataset.name == name
    assert dataset.train.inputs.dtype == torch.uint8
    assert torch.equal(dataset.train.inputs, torch.from_numpy(IMAGES)[:, None])
    assert torch.equal(dataset.train.targets, torch.from_numpy(LABELS).long())
    assert torch.equal(dataset.test.inputs, torch.from_numpy(IMAGES[:5])[:, None])
    assert len(dataset.classes) == 10
    assert dataset.augment == ("crop", "flip")


def test_second_load_comes_from_the_cache(tmp_path: Path) -> None:
    write_set(tmp_path / "mnist")
    first = load("mnist", root=tmp_path)
    assert len(list((tmp_path / ".cache").iterdir())) == 1
    second = load("mnist", root=tmp_path)
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert torch.equal(first.test.targets, second.test.targets)


def damage_truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def damage_magic(path: Path) -> None:
    path.write_bytes(gzip.compress(b"\0\0\x0d\x03" + b"\0" * 40))


def damage_size(path: Path) -> None:
    path.write_bytes(gzip.compress(idx(IMAGES)[:-1]))


def damage_not_gzip(path: Path) -> None:
    path.write_bytes(b"<html>moved</html>")


def damage_empty(path: Path) -> None:
    path.write_bytes(gzip.compress(b""))


@pytest.mark.parametrize(
    "damage", [damage_truncated, damage_magic, damage_size, damage_not_gzip, damage_empty], ids=lambda d: d.__name__
)
def test_damaged_images_are_named(tmp_path: Path, damage: object) -> None:
    write_set(tmp_path / "mnist")
    damage(tmp_path / "mnist" / "train-images-idx3-ubyte.gz")  # type: ignore[operator]
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz"):
        load("mnist", root=tmp_path)
    assert not (tmp_path / ".cache").exists()


def test_labels_out_of_range_and_wrong_count(tmp_path: Path) -> None:
    write_set(tmp_path / "mnist")
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(LABELS + 1)))
    with pytest.raises(DataError, match=r"train-labels.* labels between 0 and 9, got 10"):
        load("mnist", root=tmp_path)
    labels.write_bytes(gzip.compress(idx(LABELS[:-1])))
    with pytest.raises(DataError, match=r"train-labels.* as many images as labels, got 12 and 11"):
        load("mnist", root=tmp_path)


def test_a_missing_file_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("mnist", root=tmp_path)
    message = str(caught.value)
    assert "train-images-idx3-ubyte.gz" in message
    assert str(tmp_path / "mnist") in message
    assert "FEDRA_OFFLINE" in message
    assert "https://" in message


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path / "mnist", compressed=False)

    def refuse(path: Path, largest: int) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("fedra.data.sets.mnist.read_file", refuse)
    with pytest.raises(DataError, match=r"'mnist' cannot be read \(.*train-images-idx3-ubyte: Permission denied"):
        load("mnist", root=tmp_path)


def test_the_real_set(real_data: Path) -> None:
    dataset = load("mnist", root=real_data)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert dataset.train.targets.bincount().tolist() == counts
    assert len(dataset.test) == 10_000
    assert dataset.train.inputs.double().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)
