"""Odd photographs, names, points and files in the way: each is told or skipped, and none ends the work on the rest."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from fedra.errors import ConfigError, DataError
from fedra.faces import KnownPoints, align_face, align_folder, read_photo_file, template
from fedra.faces.photos import align_folder as aligning
from fedra.faces.photos import photo_files as reading
from fedra.faces.photos.align_folder import SKIPPED
from fedra.writing import write_atomically

WORDS_FOR_A_WIDTH = (
    b"Exif\0\0MM\0*\0\0\0\x08\0\x02" + b"\x01\0\0\x02\0\0\0\x04Cam\0" + b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0" + bytes(4)
)
"""EXIF of a photograph to be turned, whose width is the word "Cam"."""


@pytest.fixture
def tree(photographs: Path, tmp_path: Path) -> Path:
    """A folder of one good photograph, good.jpg."""
    (tmp_path / "tree").mkdir()
    shutil.copy(photographs / "person_00000/0000.jpg", tmp_path / "tree/good.jpg")
    return tmp_path / "tree"


@pytest.fixture
def points(photographs: Path) -> list[list[float]]:
    """Those of the good photograph."""
    found: list[list[float]] = json.loads((photographs / "points.json").read_text())["person_00000/0000.jpg"]
    return found


def known(folder: Path, points: dict[str, object]) -> KnownPoints:
    path = folder.parent / "points.json"
    path.write_text(json.dumps(points))
    return KnownPoints(path)


def test_damaged_notes_of_a_camera_are_told(tree: Path, points: list[list[float]], tmp_path: Path) -> None:
    Image.new("RGB", (8, 6)).save(tree / "odd.jpg", exif=WORDS_FOR_A_WIDTH)
    with pytest.raises(DataError, match=r"odd.jpg' cannot be read \(.*\): check the file"):
        read_photo_file(tree / "odd.jpg")
    outcome = align_folder(tree, tmp_path / "crops", known(tree, {"good.jpg": points, "odd.jpg": points}))
    assert outcome.made == 1
    assert "cannot be read" in outcome.skipped["odd.jpg"]


@pytest.mark.parametrize("failure", [struct.error("no"), TypeError("no"), KeyError("no"), MemoryError("no")])
def test_whatever_a_decoder_raises_is_told(tree: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def broken(image: Image.Image) -> None:
        raise failure

    monkeypatch.setattr(ImageOps, "exif_transpose", broken)
    with pytest.raises(DataError, match=r"good.jpg' cannot be read \('?no'?\): check the file"):
        read_photo_file(tree / "good.jpg")


def test_the_limit_of_pixels_is_our_own(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's is lower than a phone's 200 million, and is for the rest of the process as it was."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert read_photo_file(tree / "good.jpg").shape == (80, 100, 3)
    assert Image.MAX_IMAGE_PIXELS == 10
    monkeypatch.setattr(reading, "LARGEST", 8000)
    assert read_photo_file(tree / "good.jpg").shape == (80, 100, 3)
    monkeypatch.setattr(reading, "LARGEST", 7998)
    with pytest.raises(DataError, match=r"good.jpg' must have at most 7,998 pixels: resize it"):
        read_photo_file(tree / "good.jpg")
    assert Image.MAX_IMAGE_PIXELS == 10


@pytest.mark.parametrize("content", ["", "skipped,lessons\nmonday,latin\n", "photograph,reasons\n", None])
def test_a_list_of_somebody_else_stays(
    tree: Path, points: list[list[float]], tmp_path: Path, content: str | None
) -> None:
    theirs = tmp_path / "crops" / SKIPPED
    theirs.parent.mkdir()
    if content is None:
        theirs.mkdir()
    else:
        theirs.write_text(content)
    with pytest.raises(ConfigError, match=r"skipped.csv' must be a list of skipped photos.*: move it"):
        align_folder(tree, tmp_path / "crops", known(tree, {"good.jpg": points}))
    assert list(theirs.parent.iterdir()) == [theirs]
    assert content is None or theirs.read_text() == content


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_our_own_list_is_replaced(tree: Path, points: list[list[float]], tmp_path: Path, ending: str) -> None:
    ours = tmp_path / "crops" / SKIPPED
    ours.parent.mkdir()
    ours.write_bytes(f"photograph,reason{ending}old.jpg,no face was found{ending}".encode())
    align_folder(tree, tmp_path / "crops", known(tree, {}))
    assert "old.jpg" not in ours.read_text()
    align_folder(tree, tmp_path / "crops", known(tree, {"good.jpg": points}))
    assert not ours.exists()


def test_a_skipped_name_may_be_no_text(tree: Path, points: list[list[float]], tmp_path: Path) -> None:
    try:
        (tree / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"no image")
    except OSError:
        pytest.skip("names on this file system are text")
    outcome = align_folder(tree, tmp_path / "crops", known(tree, {"good.jpg": points}))
    assert (outcome.made, len(outcome.skipped)) == (1, 1)
    assert rb"caf\udce9.jpg" in (tmp_path / "crops" / SKIPPED).read_bytes()


def test_the_longest_names_are_written(tree: Path, points: list[list[float]], tmp_path: Path) -> None:
    long = "人" * 83 + ".jpg"
    shutil.copy(tree / "good.jpg", tree / long)
    outcome = align_folder(tree, tmp_path / "crops", known(tree, {"good.jpg": points, long: points}))
    assert (outcome.made, outcome.skipped) == (2, {})
    assert sorted(path.name for path in (tmp_path / "crops").iterdir()) == ["good.jpg", long]
    write_atomically(tmp_path / ("x" * 255), b"whole")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"whole"


def test_a_crop_that_cannot_be_written_is_skipped(tree: Path, points: list[list[float]], tmp_path: Path) -> None:
    (tree / "person").mkdir()
    shutil.copy(tree / "good.jpg", tree / "person/0.jpg")
    (tmp_path / "crops").mkdir()
    (tmp_path / "crops/person").write_text("a file in the place of a folder")
    outcome = align_folder(tree, tmp_path / "crops", known(tree, {"good.jpg": points, "person/0.jpg": points}))
    assert outcome.made == 1
    assert "cannot be written" in outcome.skipped["person/0.jpg"]


def test_a_full_disk_ends_the_work(
    tree: Path, points: list[list[float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(aligning, "write_atomically", full)
    with pytest.raises(OSError, match="No space left"):
        align_folder(tree, tmp_path / "crops", known(tree, {"good.jpg": points}))


@pytest.mark.parametrize("far", [1e8, 1e12, 1e150, 1e300])
def test_points_in_no_image_are_skipped(tree: Path, points: list[list[float]], tmp_path: Path, far: float) -> None:
    with pytest.raises(DataError, match="the landmarks of a face"):
        align_face(np.zeros((9, 9, 3), np.uint8), template() * far)
    shutil.copy(tree / "good.jpg", tree / "far.jpg")
    distant = (np.array(points) * far).tolist()
    outcome = align_folder(tree, tmp_path / "crops", known(tree, {"good.jpg": points, "far.jpg": distant}))
    assert outcome.made == 1
    assert "check the detector or" in outcome.skipped["far.jpg"]


def test_points_that_are_no_numbers_of_ours(tree: Path, tmp_path: Path) -> None:
    outcome = align_folder(tree, tmp_path / "crops", known(tree, {"good.jpg": [[10**400, 1]] * 5}))
    assert "must be a list of" in outcome.skipped["good.jpg"]
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"deep.json' cannot be read \(.*\): give a JSON file"):
        KnownPoints(tmp_path / "deep.json")
