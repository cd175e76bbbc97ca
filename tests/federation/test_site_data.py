"""A site's data: labels, people, the held-out split, the schema, and what is warned about."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedra.errors import DataError
from fedra.federation.local_data.data_schema import DataSchema
from fedra.federation.local_data.site_data import SiteData, read_data
from fedra.federation.site_config import SiteConfig

GRAY = DataSchema(shape=(1, 8, 8), classes=("normal", "pneumonia"), mean=(0.5,), std=(0.25,))
PEOPLE = DataSchema(shape=(3, 8, 8), identities="own")


def draw(path: Path, seed: int, *, side: int = 8, turned: bool = False, low: int = 0, high: int = 255) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.RandomState(seed).randint(low, high, (side, side), dtype=np.uint8)
    exif = Image.Exif()
    if turned:
        exif[274] = 6
    Image.fromarray(pixels).save(path, exif=exif)


def fill(base: Path, **counts: int) -> Path:
    for number, (name, count) in enumerate(counts.items()):
        for index in range(count):
            draw(base / name / f"{index:03}.png", 1000 * number + index)
    return base


def read(folder: Path, base: Path, schema: DataSchema = GRAY, **data: object) -> SiteData:
    site = SiteConfig.model_validate({"name": "a", "data": {"path": str(base), **data}})
    return read_data(folder, site, schema)


def test_agreed_labels_are_mapped_and_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    base = fill(tmp_path / "data", normal=10, Pneumonie=5, unclear=3)
    found = read(tmp_path, base, labels={"Pneumonie": "pneumonia", "unclear": ""})
    assert found.inputs.shape == (15, 1, 8, 8)
    assert torch.bincount(found.targets[found.held_out]).tolist() == [2, 1]
    assert torch.bincount(found.targets[~found.held_out]).tolist() == [8, 4]
    assert found.counts == {"Pneumonie": 5, "normal": 10}
    assert found.sizes() == [12]
    assert found.test_sizes() == [3]
    assert found.classes == (2,)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({}, "did you mean 'pneumonia'? Write \"Pneumonie\" = "),
        ({"Pneumonie": "pneumona"}, "did you mean 'pneumonia'"),
        ({"Pneumonie": "pneumonia", "Normal": "normal"}, "which is not there: did you mean 'normal'"),
        ({"Pneumonie": "", "normal": ""}, "at least one folder"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path, labels: dict[str, str], sentence: str) -> None:
    base = fill(tmp_path / "data", normal=2, Pneumonie=2)
    with pytest.raises(DataError) as error:
        read(tmp_path, base, labels=labels)
    assert sentence in str(error.value)


def test_people_keep_their_numbers_when_others_come_and_go(tmp_path: Path) -> None:
    base = fill(tmp_path / "data", Bo=3, Cy=3)
    before = read(tmp_path, base, PEOPLE)
    assert before.classes == (2,)
    fill(base, Ada=3)
    for image in (base / "Bo").iterdir():
        image.unlink()
    (base / "Bo").rmdir()
    after = read(tmp_path, base, PEOPLE)
    assert after.classes == (3,)  # Bo's number is never given to another
    assert json.loads((tmp_path / "state" / "identities.json").read_text()) == {"": ["Bo", "Cy", "Ada"]}
    assert sorted(set(after.targets.tolist())) == [1, 2]


def test_a_damaged_list_of_people_is_refused(tmp_path: Path) -> None:
    base = fill(tmp_path / "data", Bo=3)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "identities.json").write_text('{"": ["Bo", "Bo"]}')
    with pytest.raises(DataError, match="backup"):
        read(tmp_path, base, PEOPLE)


def test_clients_of_a_gateway_number_their_own_people(tmp_path: Path) -> None:
    fill(tmp_path / "data" / "ward-1", Bo=5, Cy=5)
    fill(tmp_path / "data" / "ward-2", Bo=5)
    found = read(tmp_path, tmp_path / "data", PEOPLE, clients=True)
    assert found.clients == ("ward-1", "ward-2")
    assert found.classes == (2, 1)
    assert found.sizes() == [8, 4]
    assert set(found.train(1)[1].tolist()) == {0}


def test_an_image_that_was_trained_on_is_never_held_out_later(tmp_path: Path) -> None:
    base = fill(tmp_path / "data", normal=5, pneumonia=5)
    read(tmp_path, base)
    first = json.loads((tmp_path / "held-out.json").read_text())
    fill(base, normal=20, pneumonia=5)
    found = read(tmp_path, base)
    second = json.loads((tmp_path / "held-out.json").read_text())
    assert set(first["tested"]) < set(second["tested"])
    assert set(first["trained"]) <= set(second["trained"])
    assert torch.bincount(found.targets[found.held_out]).tolist() == [4, 1]


def test_given_splits_are_used_and_doubles_left_out_of_the_test(tmp_path: Path) -> None:
    base = tmp_path / "data"
    fill(base / "train", normal=4, pneumonia=4)
    draw(base / "test" / "normal" / "same.png", 0)  # the first image of train
    draw(base / "test" / "pneumonia" / "new.png", 77)
    found = read(tmp_path, base)
    assert found.test_sizes() == [1]
    assert found.sizes() == [8]
    assert "1 image is in train and test alike (left out of the test)" in found.warnings


def test_sideways_empty_and_inverted_images_are_warned_about(tmp_path: Path) -> None:
    base = tmp_path / "data"
    for index in range(6):
        draw(base / "normal" / f"{index}.jpg", index, turned=index < 2, low=225)
        draw(base / "pneumonia" / f"{index}.jpg", 50 + index, low=200, high=201)
    text = " ".join(read(tmp_path, base).warnings)
    assert "2 of 12 images are stored turned" in text
    assert "6 of 12 images have one color alone" in text
    assert "are images inverted" in text


def test_good_images_are_not_warned_about(tmp_path: Path) -> None:
    assert read(tmp_path, fill(tmp_path / "data", normal=5, pneumonia=5)).warnings == ()


def test_other_sizes_are_resized_and_counted(tmp_path: Path) -> None:
    base = fill(tmp_path / "data", normal=4, pneumonia=4)
    draw(base / "normal" / "large.png", 99, side=20)
    assert read(tmp_path, base).notes == ("1 image resized to gray 8 x 8",)


def test_unreadable_images_are_left_out_and_named(tmp_path: Path) -> None:
    base = fill(tmp_path / "data", normal=4, pneumonia=4)
    (base / "normal" / "broken.png").write_bytes(b"not an image")
    found = read(tmp_path, base)
    assert len(found.inputs) == 8
    assert "broken.png" in found.warnings[0]


def test_any_data_set_of_fedra_is_a_loader(tmp_path: Path) -> None:
    schema = DataSchema(shape=(1, 8, 8), classes=tuple("0123456789"))
    site = SiteConfig.model_validate({"name": "a", "data": {"name": "digits"}})
    found = read_data(tmp_path, site, schema)
    assert found.classes == (10,)
    assert sum(found.sizes()) + sum(found.test_sizes()) <= 1797
    with pytest.raises(DataError, match="must have the plan's shape"):
        read_data(tmp_path, site, schema.model_copy(update={"shape": (1, 9, 9)}))
