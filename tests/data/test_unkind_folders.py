"""Folders as people have them: damaged images, empty folders, one image a person, one person twice; a sentence each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedra.data import load
from fedra.errors import ConfigError, DataError
from fedra.faces.datasets import verification_set


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
