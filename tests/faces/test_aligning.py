"""A tree of photographs becomes a tree of crops: again, after a kill, beside other files, and with bad photographs."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedra.errors import ConfigError, DataError
from fedra.faces import Detector, KnownPoints, align_face, align_folder
from fedra.faces.photos.align_folder import SKIPPED
from fedra.faces.synthetic import SyntheticFaces


@pytest.fixture
def tree(photographs: Path, tmp_path: Path) -> Path:
    """Photographs of our own to spoil: two people of two photographs."""
    for person in ("person_00000", "person_00001"):
        for name in ("0000.jpg", "0001.jpg"):
            (tmp_path / "tree" / person).mkdir(parents=True, exist_ok=True)
            shutil.copy(photographs / person / name, tmp_path / "tree" / person / name)
    return tmp_path / "tree"


def skipped(target: Path) -> dict[str, str]:
    with (target / SKIPPED).open(newline="") as file:
        return {line["photograph"]: line["reason"] for line in csv.DictReader(file)}


def test_a_face_looks_the_same_from_wherever_it_was_aligned(
    photographs: Path, detector: Detector, tmp_path: Path
) -> None:
    """The painter puts the same shot into a large picture and into a small one: aligned, they are alike."""
    outcome = align_folder(photographs, tmp_path / "crops", detector, size=64, format="png")
    assert (outcome.made, outcome.there, outcome.skipped) == (12, 0, {})
    assert not (tmp_path / "crops" / SKIPPED).exists()
    for person, number in ((0, 0), (2, 1), (3, 2)):
        crop = np.asarray(Image.open(tmp_path / f"crops/person_{person:05d}/{number:04d}.png"))
        image, points = SyntheticFaces(size=64).images_and_points([(person, number)])
        other = align_face(image[0].permute(1, 2, 0).numpy(), points[0].numpy(), 64)
        middle = np.s_[16:-12, 16:-16]
        assert crop.shape == (64, 64, 3)
        assert np.corrcoef(crop[middle].ravel(), other[middle].ravel())[0, 1] > 0.9


def test_known_points_need_no_detector(photographs: Path, detector: Detector, tmp_path: Path) -> None:
    align_folder(photographs, tmp_path / "known", KnownPoints(photographs / "points.json"))
    align_folder(photographs, tmp_path / "found", detector)
    for crop in (tmp_path / "known").rglob("*.jpg"):
        other = tmp_path / "found" / crop.relative_to(tmp_path / "known")
        np.testing.assert_array_equal(np.asarray(Image.open(crop)), np.asarray(Image.open(other)))


def test_what_is_done_is_not_done_again(tree: Path, detector: Detector, tmp_path: Path) -> None:
    target = tmp_path / "crops"
    align_folder(tree, target, detector)
    (target / "person_00001/0001.jpg").unlink()
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*.jpg")}
    outcome = align_folder(tree, target, detector)
    assert (outcome.made, outcome.there) == (1, 3)
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


@pytest.mark.parametrize("change", ["photograph", "size", "crop"])
def test_another_file_stays_unless_forced(tree: Path, detector: Detector, tmp_path: Path, change: str) -> None:
    target = tmp_path / "crops"
    align_folder(tree, target, detector)
    crop = target / "person_00000/0000.jpg"
    if change == "photograph":
        shutil.copy(tree / "person_00001/0000.jpg", tree / "person_00000/0000.jpg")
    if change == "crop":
        crop.write_bytes(b"somebody's own file")
    content = crop.read_bytes()
    size = 96 if change == "size" else 112
    outcome = align_folder(tree, target, detector, size=size)
    assert "or overwrite it (--force, force=True in Python)" in outcome.skipped["person_00000/0000.jpg"]
    assert outcome.there == (0 if change == "size" else 3)
    assert crop.read_bytes() == content
    outcome = align_folder(tree, target, detector, size=size, force=True)
    assert (outcome.made, outcome.skipped) == (4, {})
    assert crop.read_bytes() != content


def test_bad_photographs_are_listed_with_the_reason(tree: Path, detector: Detector, tmp_path: Path) -> None:
    (tree / "person_00000/broken.jpg").write_bytes((tree / "person_00000/0000.jpg").read_bytes()[:500])
    Image.new("RGB", (50, 50)).save(tree / "nobody.png")
    shutil.copy(tree / "person_00001/0000.jpg", tree / "person_00001/0000.jpeg")
    outcome = align_folder(tree, tmp_path / "crops", detector)
    assert outcome.made == 4
    assert skipped(tmp_path / "crops") == outcome.skipped
    assert "cannot be read" in outcome.skipped["person_00000/broken.jpg"]
    assert outcome.skipped["nobody.png"] == "no face was found"
    assert "has the same name except for its suffix" in outcome.skipped["person_00001/0000.jpg"]
    for name in ("person_00000/broken.jpg", "nobody.png", "person_00001/0000.jpeg"):
        (tree / name).unlink()
    assert align_folder(tree, tmp_path / "crops", detector).skipped == {}
    assert not (tmp_path / "crops" / SKIPPED).exists()


def test_a_run_that_is_broken_off_leaves_whole_files(tree: Path, detector: Detector, tmp_path: Path) -> None:
    class Tired:
        fingerprint = detector.fingerprint
        left = 2

        def __call__(self, image: np.ndarray) -> list:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return detector(image)

    with pytest.raises(KeyboardInterrupt):
        align_folder(tree, tmp_path / "crops", Tired())
    outcome = align_folder(tree, tmp_path / "crops", detector)
    assert (outcome.made, outcome.there) == (2, 2)


def test_folders_that_overlap_are_refused(tree: Path, detector: Detector) -> None:
    for target in (tree, tree / "crops", tree.parent):
        with pytest.raises(ConfigError, match="must not overlap"):
            align_folder(tree, target, detector)
    assert not (tree / "crops").exists()
    (tree.parent / "file").write_text("")
    with pytest.raises(ConfigError, match="must be a folder, got the file"):
        align_folder(tree, tree.parent / "file", detector)
    (tree.parent / "nothing").mkdir()
    with pytest.raises(DataError, match="contains no photos"):
        align_folder(tree.parent / "nothing", tree.parent / "crops", detector)


def test_files_of_points_are_checked(tree: Path, tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    with pytest.raises(DataError, match="cannot be read"):
        KnownPoints(path)
    path.write_text("[1, 2]")
    with pytest.raises(DataError, match=r"must be \{path:"):
        KnownPoints(path)
    path.write_text(json.dumps({"person_00000/0000.jpg": [[1, 2]], "person_00000/0001.jpg": [["a", 2]] * 5}))
    reasons = align_folder(tree, tmp_path / "crops", KnownPoints(path)).skipped
    assert "must be 5 or 68 points" in reasons["person_00000/0000.jpg"]
    assert "must be a list of" in reasons["person_00000/0001.jpg"]
    assert "is not in the points file" in reasons["person_00001/0000.jpg"]
