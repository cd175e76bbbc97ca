"""Photographs of every kind are read upright and in color; broken ones are told in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedra.errors import DataError
from fedra.faces import list_photos, read_photo_file
from fedra.faces.photos import photo_files as photographs

RED = np.zeros((6, 9, 3), np.uint8)
RED[..., 0] = 200
RED[0, 0] = (0, 0, 255)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK", "L", "LA", "1", "YCbCr", "I;16"])
def test_every_mode_becomes_color(tmp_path: Path, mode: str) -> None:
    source = Image.fromarray(RED)
    if mode == "I;16":
        source = Image.fromarray(np.full((6, 9), 51400, np.uint16))
    path = tmp_path / "photo.tiff"
    (source if mode == "I;16" else source.convert(mode)).save(path)
    found = read_photo_file(path)
    assert found.shape == (6, 9, 3)
    assert found.dtype == np.uint8
    if mode in ("RGB", "RGBA", "CMYK"):
        np.testing.assert_array_equal(found, RED)
    if mode == "I;16":
        assert np.unique(found).tolist() == [200]


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    clear = Image.fromarray(np.dstack([RED, np.zeros((6, 9), np.uint8)]), "RGBA")
    clear.save(tmp_path / "clear.png")
    assert read_photo_file(tmp_path / "clear.png").min() == 255


@pytest.mark.parametrize(("orientation", "place"), [(1, (0, 0)), (3, (-1, -1)), (6, (0, -1)), (8, (-1, 0))])
def test_the_camera_s_orientation_is_followed(tmp_path: Path, orientation: int, place: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(RED).save(tmp_path / "photo.png", exif=exif)
    found = read_photo_file(tmp_path / "photo.png")
    assert found[place].tolist() == [0, 0, 255]


def test_broken_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.jpg").write_text("no image")
    Image.fromarray(DRAWN).save(tmp_path / "whole.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:900])
    (tmp_path / "empty.png").write_bytes(b"")
    for name, told in (("text.jpg", "not an"), ("cut.jpg", "truncated"), ("empty.png", "not an"), ("no.jpg", "No")):
        with pytest.raises(DataError, match=rf"'.*{name}' cannot be read \(.*{told}.*\): check the file"):
            read_photo_file(tmp_path / name)
    monkeypatch.setattr(photographs, "LARGEST", 10)
    with pytest.raises(DataError, match="must have at most 10 pixels: resize it"):
        read_photo_file(tmp_path / "whole.jpg")


DRAWN = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


def test_a_tree_is_listed_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b/two.PNG", "a/one.jpg", "a/.hidden.jpg", ".git/x.jpg", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert list_photos(tmp_path) == [tmp_path / "a/one.jpg", tmp_path / "b/two.PNG"]
    with pytest.raises(DataError, match="does not exist: give a folder of photos"):
        list_photos(tmp_path / "nowhere")
