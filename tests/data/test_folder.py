from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedra.data import load
from fedra.data.images import list_images
from fedra.data.sets.cifar_names import CIFAR10_CLASSES
from fedra.errors import ConfigError, DataError

DRAW = np.random.default_rng(4)


def save(path: Path, *, size: tuple[int, int] = (6, 5), mode: str = "RGB") -> np.ndarray:
    pixels = DRAW.integers(0, 256, (*size, 3) if mode == "RGB" else size, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def test_divided_tree_reads_back_exactly(tmp_path: Path) -> None:
    written = {
        f"{part}/{name}/{number}.png": save(tmp_path / "mine" / part / name / f"{number}.png")
        for part, count in (("train", 3), ("test", 2))
        for name in ("cat", "dog")
        for number in range(count)
    }
    (tmp_path / "mine" / "train" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "mine" / "val").mkdir()
    for _ in range(2):  # decoded, then from the cache
        dataset = load("imagefolder", root=tmp_path, path="mine")
        assert dataset.classes == ("cat", "dog")
        assert dataset.train.targets.tolist() == [0, 0, 0, 1, 1, 1]
        assert dataset.test.targets.tolist() == [0, 0, 1, 1]
        assert np.array_equal(dataset.train.inputs[4].permute(1, 2, 0).numpy(), written["train/dog/1.png"])
        assert np.array_equal(dataset.test.inputs[0].permute(1, 2, 0).numpy(), written["test/cat/0.png"])
    assert dataset.shape == (3, 6, 5)
    assert dataset.groups is None


def test_undivided_tree_holds_out_a_share_of_every_class(tmp_path: Path) -> None:
    for name, count in (("a", 10), ("b", 20), ("lonely", 1)):
        for number in range(count):
            save(tmp_path / "elsewhere" / name / f"{number:02}.png")
    dataset = load("imagefolder", root=tmp_path / "root", path=str(tmp_path / "elsewhere"), test_fraction=0.3)
    assert dataset.train.targets.bincount().tolist() == [7, 14, 1]
    assert dataset.test.targets.bincount().tolist() == [3, 6]
    again = load("imagefolder", root=tmp_path / "other", path=str(tmp_path / "elsewhere"), test_fraction=0.3)
    assert torch.equal(dataset.train.inputs, again.train.inputs)


def test_groups_are_the_top_folders(tmp_path: Path) -> None:
    for group, classes in (("east", ("x", "y")), ("north", ("y",)), ("west", ("x", "z"))):
        for name in classes:
            for number in range(5):
                save(tmp_path / "hospitals" / group / name / f"{number}.png")
    dataset = load("imagefolder", root=tmp_path, path="hospitals", groups=True)
    assert dataset.classes == ("x", "y", "z")
    assert dataset.group_names == ("east", "north", "west")
    assert dataset.groups is not None
    assert len(dataset.groups) == len(dataset.train)
    pairs = set(zip(dataset.groups.tolist(), dataset.train.targets.tolist(), strict=True))
    assert pairs == {(0, 0), (0, 1), (1, 1), (2, 0), (2, 2)}


def test_size_and_gray(tmp_path: Path) -> None:
    save(tmp_path / "p" / "a" / "1.png")
    save(tmp_path / "p" / "a" / "2.jpg", size=(9, 12))
    save(tmp_path / "p" / "a" / "3.png", mode="L")
    fields = {"root": tmp_path, "path": "p", "test_fraction": 0.4}
    with pytest.raises(DataError, match=r"1.png with 6 x 5.*2.jpg with 9 x 12.*set `size`"):
        load("imagefolder", **fields)
    assert load("imagefolder", **fields, size=8).shape == (3, 8, 8)
    assert load("imagefolder", **fields, size=[4, 7], gray=True).shape == (1, 4, 7)
    with pytest.raises(ConfigError, match=r"'size' of .* must be greater than 0, got 0"):
        load("imagefolder", **fields, size=0)


def test_unreadable_images_are_listed_together(tmp_path: Path) -> None:
    for number in range(4):
        save(tmp_path / "p" / "a" / f"good{number}.png")
    (tmp_path / "p" / "a" / "text.png").write_text("hello")
    whole = (tmp_path / "p" / "a" / "good0.png").read_bytes()
    (tmp_path / "p" / "a" / "half.png").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(np.zeros((6, 5), np.uint16)).save(tmp_path / "p" / "a" / "deep.png")
    with pytest.raises(DataError) as caught:
        load("imagefolder", root=tmp_path, path="p")
    message = str(caught.value)
    assert message.startswith("3 images cannot be used")
    assert all(name in message for name in ("text.png", "half.png", "deep.png (it has more than 8 bits"))
    assert "good" not in message


def test_empty_and_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the field 'path' of .* must be set"):
        load("imagefolder", root=tmp_path)
    with pytest.raises(DataError, match=r"the folder .*nowhere does not exist"):
        load("imagefolder", root=tmp_path, path="nowhere")
    (tmp_path / "p").mkdir()
    with pytest.raises(DataError, match="p must contain one folder of images per class"):
        load("imagefolder", root=tmp_path, path="p")
    (tmp_path / "p" / "a").mkdir()
    with pytest.raises(DataError, match=r"the class folder .*a must contain images, got none"):
        load("imagefolder", root=tmp_path, path="p")
    save(tmp_path / "p" / "a" / "1.png")
    with pytest.raises(DataError, match="enough images to hold out at least one"):
        load("imagefolder", root=tmp_path, path="p")


def test_a_level_too_few_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "firm" / "person").mkdir(parents=True)
    with pytest.raises(DataError, match=r'add some, or set `groups` for one more level \(true, or "level" for faces\)'):
        list_images(tmp_path)
    (tmp_path / "firm" / "person").rmdir()
    with pytest.raises(DataError, match="add some, or remove it"):
        list_images(tmp_path)


def test_a_test_class_that_is_not_trained(tmp_path: Path) -> None:
    for place in ("train/a", "test/a", "test/b"):
        save(tmp_path / "p" / place / "1.png")
    with pytest.raises(DataError, match=r"must only have classes of .*train, got 'b'"):
        load("imagefolder", root=tmp_path, path="p")


def cinic_tree(base: Path) -> None:
    for part in ("train", "valid", "test"):
        for name in CIFAR10_CLASSES:
            save(base / part / name / f"{part}.png", size=(32, 32), mode="L" if name == "cat" else "RGB")


def test_cinic_parts(tmp_path: Path) -> None:
    cinic_tree(tmp_path / "cinic-10")
    dataset = load("cinic10", root=tmp_path)
    assert dataset.train.targets.tolist() == list(range(10))
    assert dataset.shape == (3, 32, 32)
    assert dataset.augment == ("reflect-crop", "flip")
    more = load("cinic10", root=tmp_path, use_valid=True)
    assert len(more.train) == 20
    assert torch.equal(more.train.inputs[:10], dataset.train.inputs)


def test_cinic_from_its_archive(tmp_path: Path) -> None:
    cinic_tree(tmp_path / "source")
    with tarfile.open(tmp_path / "CINIC-10.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "source", ".")
    assert len(load("cinic10", root=tmp_path).train) == 10
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".cache", "CINIC-10.tar.gz", "cinic-10", "source"]


def test_cinic_damaged_or_hostile_archive(tmp_path: Path) -> None:
    archive = tmp_path / "root" / "CINIC-10.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(b"\x1f\x8b nothing")
    with pytest.raises(DataError, match=r"CINIC-10.tar.gz cannot be unpacked"):
        load("cinic10", root=tmp_path / "root")
    with tarfile.open(archive, "w:gz") as hostile:
        member = tarfile.TarInfo("../../escaped.png")
        member.size = 1
        hostile.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(DataError, match=r"CINIC-10.tar.gz cannot be unpacked"):
        load("cinic10", root=tmp_path / "root")
    assert [entry.name for entry in tmp_path.iterdir()] == ["root"]
    assert [entry.name for entry in archive.parent.iterdir()] == ["CINIC-10.tar.gz"]


def test_cinic_with_a_missing_class(tmp_path: Path) -> None:
    save(tmp_path / "cinic-10" / "train" / "cat" / "1.png", size=(32, 32))
    with pytest.raises(DataError, match="train must contain the ten classes"):
        load("cinic10", root=tmp_path)
