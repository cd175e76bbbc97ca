"""Galleries in Python: enroll, identify, remove."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedra.data.decoding import Bytes
from fedra.errors import ConfigError, DataError
from fedra.faces import (
    Decision,
    Detector,
    FaceRecognizer,
    FaceWarning,
    Gallery,
    ModelSource,
    TemplateThreshold,
    list_people_photos,
    read_photo,
)
from fedra.faces.recognition.enrollment import clean_name
from fedra.faces.recognition.gallery_file import GalleryContent


def means(images: Tensor) -> Tensor:
    return torch.nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)


@pytest.fixture
def gallery(recognizer: FaceRecognizer, tmp_path: Path) -> Gallery:
    return Gallery.open(tmp_path / "new" / "g", recognizer)


def test_a_gallery_from_the_first_person_to_the_last(
    gallery: Gallery, photographs: Path, group: Bytes, recognizer: FaceRecognizer
) -> None:
    ada, grace = photographs / "person_00000", photographs / "person_00001"
    assert (len(gallery), gallery.names, gallery.path.exists()) == (0, (), False)
    with pytest.raises(DataError, match="the gallery is empty"):
        gallery.identify(ada / "0000.jpg")
    found = gallery.enroll(" Ada ", [str(ada / "0000.jpg"), read_photo(ada / "0001.jpg")])
    assert (found.people, found.problems, found.notes) == ({"Ada": 2}, (), ())
    assert gallery.enroll("Grace", grace).people == {"Grace": 3}  # a folder
    assert (gallery.names, gallery.photo_counts) == (("Ada", "Grace"), {"Ada": 2, "Grace": 3})
    assert "Ada" in gallery
    assert "Emmy" not in gallery
    answer = gallery.identify(read_photo(ada / "0000.jpg"), top=1)
    assert [match.name for match in answer.matches] == ["Ada"]
    assert (answer.name, answer.threshold, answer.accepted) == (None, None, None)
    score = answer.matches[0].score
    assert gallery.identify(ada / "0000.jpg", threshold=score - 0.01).name == "Ada"
    refused = gallery.identify(ada / "0000.jpg", threshold=score + 0.01)
    assert (refused.name, refused.accepted) == (None, False)
    assert [one.face.box.tolist() for one in gallery.identify_all(group)] == [
        face.box.tolist() for face in recognizer.detect(group)
    ]
    assert gallery.search(recognizer.embed([ada / "0000.jpg"]), top=1)[0][0].name == "Ada"
    assert gallery.remove("Ada").left == 1
    assert gallery.names == ("Grace",)
    with pytest.raises(ConfigError, match="'Ada' is not enrolled"):
        gallery.remove("Ada")


def test_several_faces_are_reported_and_can_all_be_named(gallery: Gallery, photographs: Path, group: Bytes) -> None:
    gallery.enroll_folder(str(photographs))
    with pytest.warns(FaceWarning, match="shows 4 faces"):
        one = gallery.identify(group)
    assert "shows 4 faces" in one.notes[0]
    with pytest.warns(FaceWarning, match="shows 4 faces"):
        assert "shows 4 faces" in gallery.enroll("Group", group).notes[0]
    assert len(gallery.identify_all(group, threshold=-1.0)) == 4
    assert all(found.name for found in gallery.identify_all(group, threshold=-1.0))
    assert gallery.identify_all(np.zeros((9, 9, 3), dtype=np.uint8)) == ()


def test_many_photographs_of_which_some_cannot_be_used(gallery: Gallery, photographs: Path, tmp_path: Path) -> None:
    gallery.enroll_folder(photographs)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"broken")
    answers = list(gallery.identify_each([photographs / "person_00000", broken, photographs / "person_00001/0000.jpg"]))
    assert [len(answer.faces) for answer in answers] == [1, 1, 1, 0, 1]
    assert [answer.problem is None for answer in answers] == [True, True, True, False, True]
    assert "broken.jpg' cannot be read" in str(answers[3].problem)


def test_many_photographs_are_embedded_in_groups(
    gallery: Gallery, photographs: Path, group: Bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups grow, hold the main faces alone, and give the answers of one photograph after the other."""
    gallery.enroll_folder(photographs)
    paths = sorted(photographs.glob("*/*.jpg"))
    expected = [gallery.identify(path).matches for path in paths]
    embed, sizes = gallery.recognizer.embed_crops, list[int]()

    def count(crops: Sequence[Bytes]) -> Tensor:
        sizes.append(len(crops))
        return embed(crops)

    monkeypatch.setattr(gallery.recognizer, "embed_crops", count)
    answers = list(gallery.identify_each([*paths, group]))
    assert sizes == [1, 2, 4, 6]
    assert [answer.photo for answer in answers[:-1]] == paths
    for answer, matches in zip(answers, expected, strict=False):
        scores = {match.name: match.score for match in answer.faces[0].matches}
        assert scores == pytest.approx({match.name: match.score for match in matches}, abs=1e-5)
    everyone = list(gallery.identify_each([group, group], all_faces=True))
    assert [len(answer.faces) for answer in everyone] == [4, 4]


def test_an_unusable_embedding_spoils_no_other_photograph(
    gallery: Gallery, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.enroll_folder(photographs)
    paths = sorted(photographs.glob("*/*.jpg"))[:7]
    embed, bad = gallery.recognizer.embed_crops, gallery.recognizer.main_face(paths[4]).crop

    def spoil(crops: Sequence[Bytes]) -> Tensor:
        usable = torch.tensor([not np.array_equal(crop, bad) for crop in crops])
        return embed(crops) * usable[:, None]

    monkeypatch.setattr(gallery.recognizer, "embed_crops", spoil)
    answers = list(gallery.identify_each(paths))
    assert [answer.photo for answer in answers] == paths
    assert [answer.problem is None for answer in answers] == [True] * 4 + [False] + [True] * 2


def test_templates_alone_are_kept(gallery: Gallery, photographs: Path, recognizer: FaceRecognizer) -> None:
    assert gallery.enroll_folder(photographs).people == {f"person_0000{number}": 3 for number in range(4)}
    content = GalleryContent.read(gallery.path)
    for number, name in enumerate(content.names):
        expected = recognizer.embed(sorted((photographs / name).glob("*.jpg"))).sum(dim=0)
        torch.testing.assert_close(content.templates[number], expected, rtol=1e-4, atol=1e-4)
    assert not any(part in gallery.path.read_bytes() for part in (b"JFIF", b"PNG"))


def test_the_good_are_enrolled_and_the_rest_is_reported(gallery: Gallery, photographs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "people"
    shutil.copytree(photographs / "person_00000", folder / "Ada")
    shutil.copytree(photographs / "person_00001", folder / "Bob")
    (folder / "Bob/0000.jpg").write_bytes(b"broken")
    (folder / "Bob/phone.heic").write_bytes(b"broken")
    (folder / "Empty").mkdir()
    (folder / "Gone").mkdir()
    (folder / "Gone/a.jpg").write_bytes(b"broken")
    (folder / "loose.jpg").write_bytes(b"")
    found = gallery.enroll_folder(folder)
    assert found.people == {"Ada": 3, "Bob": 2}
    told = "\n".join(found.problems)
    for part in (
        "Empty' contains no photos",
        "loose.jpg' is skipped, because it is not in a person's folder",
        "Bob/0000.jpg' cannot be read",
        "phone.heic' cannot be read",
        "'Gone' is skipped, because none of the 1 photos is usable",
    ):
        assert part in told
    before = gallery.path.read_bytes()
    again = gallery.enroll_folder(folder)
    assert (again.people, again.existing) == ({}, ("Ada", "Bob"))
    assert gallery.path.read_bytes() == before
    with pytest.raises(ConfigError, match=r"'Ada' is already enrolled: add the photos .* or replace"):
        gallery.enroll("Ada", folder / "Ada")
    assert gallery.enroll("Ada", folder / "Ada", existing="add").people == {"Ada": 3}
    assert gallery.photo_counts == {"Ada": 6, "Bob": 2}
    gallery.enroll("Ada", folder / "Ada/0000.jpg", existing="replace")
    assert gallery.photo_counts == {"Ada": 1, "Bob": 2}
    with pytest.raises(DataError, match=r"no person could be enrolled: .*cannot be read"):
        gallery.enroll("Emmy", folder / "Gone/a.jpg")


def test_names_and_folders_are_checked(gallery: Gallery, tmp_path: Path) -> None:
    assert clean_name(" Zoe\u0308 ") == "Zoë"
    for wrong in ("", "  ", "a\nb"):
        with pytest.raises(ConfigError, match="a person's name must be one non-empty line"):
            gallery.enroll(wrong, [])
    with pytest.raises(DataError, match="does not exist: give a folder with one subfolder"):
        list_people_photos(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="must have one subfolder of photos per person"):
        list_people_photos(str(tmp_path / "empty"))
    with pytest.raises(DataError, match="contains no photos"):
        gallery.enroll("Ada", tmp_path / "empty")


def test_another_model_is_refused(
    gallery: Gallery, photographs: Path, detector: Detector, tmp_path: Path, model: Path
) -> None:
    gallery.enroll_folder(photographs)
    before = gallery.path.read_bytes()
    other = FaceRecognizer(means, detector, size=32, fingerprint="means")
    with pytest.raises(ConfigError, match="created with another model"):
        Gallery.open(gallery.path, other)
    late = Gallery(gallery.path, other)
    with pytest.raises(ConfigError, match="created with another model"):
        late.enroll("Ada", photographs / "person_00000")
    assert gallery.path.read_bytes() == before


def test_a_gallery_finds_its_own_model(
    source: ModelSource, photographs: Path, tmp_path: Path, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = tmp_path / "g", list[str]()
    monkeypatch.setattr(
        "fedra.faces.recognition.recognizer.open_detector", lambda name: asked.append(str(name)) or detector
    )
    with pytest.raises(ConfigError, match=r"model must be set for the new gallery '.*': give a run's folder"):
        Gallery.open(path)
    with pytest.raises(DataError, match=r"the gallery '.*' does not exist: enroll a person first"):
        Gallery.open(path, model=source.path, create=False)
    Gallery.open(path, model=source.path, detector="yunet").enroll_folder(photographs)
    again = Gallery.open(str(path))
    assert (len(again), asked) == (4, ["yunet", "yunet"])
    assert again.identify(photographs / "person_00001/0000.jpg").matches


def test_a_gallery_of_a_callable(photographs: Path, detector: Detector, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pass fingerprint="):
        Gallery.open(tmp_path / "g", FaceRecognizer(means, detector, size=32))
    recognizer = FaceRecognizer(means, detector, size=32, fingerprint="means 1")
    Gallery.open(tmp_path / "g", recognizer).enroll_folder(photographs)
    assert Gallery.open(tmp_path / "g", recognizer).identify(photographs / "person_00001/0000.jpg").matches
    with pytest.raises(ConfigError, match="a recognizer must be passed for this gallery"):
        Gallery.open(tmp_path / "g")


def test_the_threshold_is_that_of_templates_as_enrolled(gallery: Gallery, photographs: Path) -> None:
    """A template of several photographs has a threshold of its own, and the statement is an estimate."""
    gallery.enroll("Ada", photographs / "person_00000")
    gallery.enroll("Grace", photographs / "person_00001/0000.jpg")
    photo = photographs / "person_00000/0000.jpg"
    score = gallery.identify(photo).matches[0].score
    several = TemplateThreshold(
        photos=3, value=score + 0.01, attained=0.02, impostors=9, people=9, interval=(0.01, 0.04)
    )
    gallery.recognizer.decision = Decision(
        fingerprint=gallery.recognizer.fingerprint, value=score - 0.01, far=0.01, attained=0.01, impostors=9, genuine=0,
        tar=None, data="x", interval=(0.005, 0.02), templates=(several,),
    )  # fmt: skip
    try:
        found = gallery.identify(photo)
        assert (found.threshold, found.accepted) == (score + 0.01, False)
        assert found.false_accept is not None
        assert found.false_accept.value == pytest.approx(1 - 0.99 * 0.98)
        assert found.false_accept.low == pytest.approx(1 - 0.995 * 0.99)
        assert found.false_accept.high == pytest.approx(1 - 0.98 * 0.96)
        assert str(found.false_accept) == "about 2.98 % (95 % interval 1.5 to 5.92 %)"
    finally:
        gallery.recognizer.decision = None
