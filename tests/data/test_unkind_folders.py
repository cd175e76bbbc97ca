"""Folders as people have them: damaged images, empty folders, one image a person, one person twice; a sentence each."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedra.data import load
from fedra.errors import ConfigError, DataError
from fedra.experiment.build import data_notes
from fedra.faces.datasets import verification_set
from fedra.faces.photos.align_folder import align_folder
from fedra.faces.photos.detection import Detection
from fedra.faces.photos.photo_files import read_photo_file


def crops(base: Path, *counts: int) -> Path:
    draw = np.random.default_rng(0)
    for person, count in enumerate(counts):
        (base / f"p{person}").mkdir(parents=True)
        for number in range(count):
            pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(base / f"p{person}" / f"{number}.png")
    return base


def test_a_damaged_image_is_named_wherever_it_is_read(tmp_path: Path) -> None:
    folder = crops(tmp_path / "crops", 3, 3)
    (folder / "p0" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"repair or remove .*p0/1\.png"):
        verification_set(folder, root=tmp_path, size=32)
    with pytest.raises(DataError, match=r"set faults = 'skip' to skip them: .*p0/1\.png"):
        load("faces", root=tmp_path, folders=(str(folder),), size=32, test_fraction=0.4)
    left = load("faces", root=tmp_path, folders=(str(folder),), size=32, test_fraction=0.4, faults="skip")
    assert len(left.train) + len(left.test) == 5


def test_empty_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    hollow = crops(tmp_path / "hollow", 2, 0)
    for folder, sentence in (
        (tmp_path / "empty", "one folder of images per class"),
        (hollow, "p1 must contain images, got none"),
    ):
        with pytest.raises(DataError, match=sentence):
            verification_set(folder, root=tmp_path, size=32)
        with pytest.raises(DataError, match=sentence):
            load("faces", root=tmp_path, folders=(str(folder),), size=32)


def test_people_with_one_image_each_can_neither_be_verified_nor_tested_on(tmp_path: Path) -> None:
    folder = crops(tmp_path / "single", 1, 1, 1)
    with pytest.raises(DataError, match=r"pairs of one person, got 0 .* use more people with at least two images each"):
        verification_set(folder, root=tmp_path, size=32)
    with pytest.raises(ConfigError, match=r"raise test_fraction \(an identity's only image is never held out\)"):
        load("faces", root=tmp_path, folders=(str(folder),), size=32, test_fraction=0.3)


def test_one_person_in_two_folders_is_told(tmp_path: Path) -> None:
    both = tuple(str(crops(tmp_path / name, 3, 3)) for name in ("one", "two"))
    with pytest.raises((ConfigError, DataError), match="p0"):
        load("faces", root=tmp_path, folders=both, size=32)


class WholeImage:
    """A detector that finds one face everywhere."""

    fingerprint = "whole image"

    def __call__(self, image: np.ndarray) -> list[Detection]:
        points = np.array([[10, 12], [22, 12], [16, 18], [11, 24], [21, 24]], dtype=np.float64)
        return [Detection(np.array([2.0, 2.0, 30.0, 30.0]), 0.9, points)]


def make_odd(folder: Path) -> list[str]:
    """Entries that have the names of images and are none."""
    (folder / "a folder.jpg").mkdir()
    (folder / "nowhere.png").symlink_to(folder / "missing.png")
    (folder / "loop.jpg").symlink_to(folder / "loop.jpg")
    os.mkfifo(folder / "pipe.jpg")
    return ["a folder.jpg", "loop.jpg", "nowhere.png", "pipe.jpg"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_file_is_counted(tmp_path: Path) -> None:
    folder = crops(tmp_path / "crops", 4, 4)
    names = make_odd(folder / "p0")
    with pytest.raises(DataError, match="4 entries with names of images are not files") as told:
        load("imagefolder", root=tmp_path, path=str(folder))
    assert all(name in str(told.value) for name in names)
    with pytest.raises(DataError, match="4 entries with names of images are not files"):
        verification_set(folder, root=tmp_path, size=32)
    given = {"root": tmp_path, "folders": (str(folder),), "size": 32, "test_fraction": 0.3}
    with pytest.raises(DataError, match="4 entries with names of images are not files"):
        load("faces", **given)
    left = load("faces", **given, faults="skip")
    assert len(left.train) + len(left.test) == 8
    assert "warning: 4 images were left out, such as " in str(data_notes(left))
    assert "its link leads nowhere" in left.notes["left out"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_photos_that_are_no_files_are_listed_as_skipped(tmp_path: Path) -> None:
    folder = crops(tmp_path / "photos", 1)
    names = make_odd(folder / "p0")
    found = align_folder(folder, tmp_path / "out", WholeImage())
    assert found.made == 1
    assert sorted(found.skipped) == [f"p0/{name}" for name in names]
    assert "(it is a device or a pipe)" in found.skipped["p0/pipe.jpg"]


def test_a_picture_of_too_many_pixels_in_the_place_of_a_crop_is_left_alone(tmp_path: Path) -> None:
    """Its header says 20,000 x 20,000; Pillow refuses it with an error of its own."""
    folder = crops(tmp_path / "photos", 1)
    place = tmp_path / "out" / "p0" / "0.jpg"
    place.parent.mkdir(parents=True)
    Image.new("L", (8, 8)).save(place)
    content = place.read_bytes()
    frame = content.index(b"\xff\xc0") + 5
    bomb = content[:frame] + (20_000).to_bytes(2, "big") * 2 + content[frame + 4 :]
    place.write_bytes(bomb)
    found = align_folder(folder, tmp_path / "out", WholeImage())
    assert "is not the crop of this photo" in found.skipped["p0/0.png"]
    assert place.read_bytes() == bomb


def test_a_photo_of_too_many_pixels_is_told(tmp_path: Path) -> None:
    path = tmp_path / "huge.jpg"
    Image.new("L", (8, 8)).save(path)
    content = path.read_bytes()
    frame = content.index(b"\xff\xc0") + 5
    path.write_bytes(content[:frame] + (17_000).to_bytes(2, "big") * 2 + content[frame + 4 :])
    with pytest.raises(DataError, match="must have at most 200,000,000 pixels: resize it"):
        read_photo_file(path)


def test_a_run_tells_of_photos_that_are_not_aligned(tmp_path: Path) -> None:
    folder = crops(tmp_path / "photos", 4, 4)
    for path in folder.rglob("*.png"):
        with Image.open(path) as image:
            image.resize((64, 48)).save(path)
    found = load("faces", root=tmp_path, folders=(str(folder),), size=32, test_fraction=0.3)
    assert "warning: 8 of 8 images are not 32x32 (most are 48x64)" in str(data_notes(found))
