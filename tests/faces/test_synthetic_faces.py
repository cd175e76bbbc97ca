from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from fedra.data import load
from fedra.errors import ConfigError, DataError
from fedra.faces.synthetic import PhotoSettings, SyntheticFaces, photographs, write_photos
from fedra.faces.synthetic.traits import KNOBS

CALM = dict.fromkeys(KNOBS, 0.0)
TEMPLATE = torch.tensor(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
"""Where an aligned image of 112 x 112 has the eyes, the nose and the corners of the mouth."""


def test_an_image_depends_on_its_numbers_alone() -> None:
    before = torch.random.get_rng_state()
    world = SyntheticFaces(seed=3, size=32)
    many = world.images([(person, number) for person in range(12) for number in range(7)]).view(12, 7, 3, 32, 32)
    some = world.images([(7, 5), (2, 0), (7, 5)])
    assert torch.equal(some, torch.stack([many[7, 5], many[2, 0], many[7, 5]]))
    assert not torch.equal(SyntheticFaces(seed=4, size=32).images([(7, 5)])[0], many[7, 5])
    assert not torch.equal(SyntheticFaces(seed=3, size=32, kind="stranger").images([(7, 5)])[0], many[7, 5])
    assert torch.equal(before, torch.random.get_rng_state())


def test_without_circumstances_a_person_always_looks_the_same() -> None:
    world = SyntheticFaces(size=32, knobs=CALM)
    images = world.images([(0, 0), (0, 1), (1, 0)]).float()
    assert torch.equal(images[0], images[1])
    assert (images[0] - images[2]).abs().mean() > 10


@pytest.mark.parametrize("knob", KNOBS)
def test_every_knob_changes_images(knob: str) -> None:
    calm, moved = (SyntheticFaces(size=32, knobs={**CALM, knob: strength}) for strength in (0.0, 1.0))
    which = [(0, number) for number in range(8)]
    assert (calm.images(which).float() - moved.images(which).float()).abs().mean() > 1


def test_points_lie_about_the_template() -> None:
    _, points = SyntheticFaces(size=112).images_and_points([(person, 0) for person in range(100)])
    assert points.shape == (100, 5, 2)
    assert (points.mean(dim=0) - TEMPLATE).abs().max() < 4
    assert (points[:, 0, 0] < points[:, 1, 0]).all()
    assert (points[:, 3, 0] < points[:, 4, 0]).all()
    _, half = SyntheticFaces(size=56).images_and_points([(person, 0) for person in range(100)])
    assert torch.allclose((half + 0.5) * 2, points + 0.5, atol=1e-3)


def test_points_are_where_the_features_are_painted() -> None:
    """Pupils are black, and what lies below the point of an eye is darker than the forehead above it."""
    knobs = {**CALM, "pose": 1.0}
    images, points = SyntheticFaces(size=112, knobs=knobs).images_and_points([(person, 0) for person in range(40)])
    darkest = []
    for image, five in zip(images.float().mean(dim=1), points, strict=True):
        for x, y in five[:2].round().int().tolist():
            darkest.append(float(image[max(y - 2, 0) : y + 3, max(x - 2, 0) : x + 3].min()))
    assert np.mean(np.array(darkest) < 60) > 0.95


def test_the_data_set_keeps_strangers_apart(tmp_path: Path) -> None:
    settings = {"identities": 6, "images": 5, "size": 32, "test_fraction": 0.2, "test_identities": 4}
    for _ in range(2):  # painted, then from the cache
        dataset = load("synthetic-faces", root=tmp_path, **settings)
        assert dataset.train.targets.bincount().tolist() == [4] * 6
        assert dataset.test.targets.bincount().tolist() == [1] * 6 + [5] * 4
        assert dataset.pairs is not None
        assert len(dataset.pairs) == 80
        assert int(dataset.pairs.first.min()) >= 6
    larger = load("synthetic-faces", root=tmp_path, **{**settings, "identities": 9, "images": 7, "test_fraction": 0})
    assert torch.equal(SyntheticFaces(size=32).images([(8, 6)])[0], larger.train.inputs[8 * 7 + 6])
    assert {one.numpy().tobytes() for one in dataset.train.inputs} < {
        one.numpy().tobytes() for one in larger.train.inputs
    }
    plain = load("synthetic-faces", root=tmp_path, **{**settings, "test_identities": 0})
    assert plain.pairs is None
    with pytest.raises(ConfigError, match="must have test images, got none"):
        load("synthetic-faces", root=tmp_path, **{**settings, "test_identities": 0, "test_fraction": 0})
    with pytest.raises(ConfigError, match="'pose' of the data set 'synthetic-faces' must be at least 0, got -1"):
        load("synthetic-faces", root=tmp_path, pose=-1)


def test_pixels_alone_hardly_verify(tmp_path: Path) -> None:
    dataset = load("synthetic-faces", root=tmp_path, identities=2, test_identities=40, images=10, size=32, pairs=2000)
    pairs = dataset.pairs
    assert pairs is not None
    pixels = dataset.test.inputs.float().flatten(1)
    directions = F.normalize(pixels - pixels.mean(dim=1, keepdim=True))
    scores = (directions[pairs.first] * directions[pairs.second]).sum(dim=1)
    best = max(float(((scores >= cut) == pairs.same).float().mean()) for cut in scores.sort().values[::20])
    assert 0.52 < best < 0.68


def test_photographs_hold_the_whole_face() -> None:
    settings = PhotoSettings(height=120, width=160)
    images, points = photographs(SyntheticFaces(), [(person, 0) for person in range(12)], settings)
    assert images.shape == (12, 3, 120, 160)
    assert points[..., 0].min() > 0
    assert points[..., 0].max() < 160
    assert points[..., 1].min() > 0
    assert points[..., 1].max() < 120
    eyes = (points[:, 1] - points[:, 0]).norm(dim=1)
    assert eyes.max() / eyes.min() > 1.2
    tilt = torch.atan2(*(points[:, 1] - points[:, 0]).flip(-1).unbind(-1))
    assert tilt.abs().max() > 0.2


def test_written_photographs(tmp_path: Path) -> None:
    settings = PhotoSettings(height=80, width=100)
    base = write_photos(tmp_path / "photos", SyntheticFaces(), identities=3, images=4, settings=settings)
    files = sorted(str(path.relative_to(base)) for path in base.rglob("*.jpg"))
    assert files[0] == "person_00000/0000.jpg"
    assert len(files) == 12
    points = json.loads((base / "points.json").read_text())
    assert sorted(points) == files
    images, expected = photographs(SyntheticFaces(), [(2, 3)], settings)
    assert torch.allclose(torch.tensor(points["person_00002/0003.jpg"]), expected[0], atol=0.01)
    read = np.asarray(Image.open(base / "person_00002/0003.jpg")).astype(float)
    assert np.abs(read - images[0].permute(1, 2, 0).numpy()).mean() < 12
    assert load("faces", root=tmp_path, folders=["photos"], size=32, test_fraction=0.25).classes[2] == "person_00002"
    with pytest.raises(DataError, match="photos' exists: give another name"):
        write_photos(base, SyntheticFaces(), identities=1, images=1)
