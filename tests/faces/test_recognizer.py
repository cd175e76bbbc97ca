"""Recognizers in Python: photos in any form, groups, models of any kind."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

from fedra.data.decoding import Bytes
from fedra.errors import ConfigError, DataError, RunError
from fedra.faces import (
    Decision,
    Detection,
    Detector,
    Face,
    FaceRecognizer,
    FaceWarning,
    KnownPoints,
    ModelSource,
    SyntheticFaces,
    list_photos,
    read_photo,
    template,
)
from fedra.faces.recognition.model_source import read_size
from fedra.models import build


def means(images: Tensor) -> Tensor:
    """An embedder: means of the cells of a grid."""
    return torch.nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)


class Net(nn.Module):
    """A user's network, without `body` and `head`."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.line = nn.Linear(48, 5)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.line(means(self.norm(images)))
        return found


def decision(recognizer: FaceRecognizer, value: float) -> Decision:
    return Decision(fingerprint=recognizer.fingerprint, value=value, far=0.1, attained=0.1, impostors=9, genuine=0,
                    tar=None, data="x")  # fmt: skip


# photos


def test_a_photo_is_the_same_in_every_form(photographs: Path, recognizer: FaceRecognizer) -> None:
    path = photographs / "person_00001/0000.jpg"
    pixels = read_photo(path)
    backwards = np.ascontiguousarray(pixels[..., ::-1])
    forms = [
        str(path),
        Image.open(path),
        pixels,
        backwards[..., ::-1],  # of an OpenCV frame, with negative strides
        torch.from_numpy(pixels),
        torch.from_numpy(pixels).permute(2, 0, 1),
    ]
    expected = recognizer.embed(path)
    assert expected.dim() == 1
    for form in forms:
        torch.testing.assert_close(recognizer.embed(form), expected)
    torch.testing.assert_close(recognizer.embed(forms), expected.expand(6, -1))
    torch.testing.assert_close(recognizer.embed(np.stack([pixels, pixels])), expected.expand(2, -1))


def test_gray_arrays_are_colored() -> None:
    gray = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for form in (gray, gray[..., None], torch.from_numpy(gray), torch.from_numpy(gray)[None]):
        assert np.array_equal(read_photo(form), np.stack([gray] * 3, axis=2))


@pytest.mark.parametrize(
    ("photo", "told"),
    [
        (np.zeros((4, 4, 3)), "got an array of float64: multiply by 255"),
        (np.zeros((4, 4, 3), dtype=np.int64), "got an array of int64"),
        (np.zeros((4, 4, 4), dtype=np.uint8), r"got an array of shape \(4, 4, 4\)"),
        (np.zeros(5, dtype=np.uint8), r"got an array of shape \(5,\)"),
        (np.zeros((0, 4, 3), dtype=np.uint8), r"got an array of shape \(0, 4, 3\)"),
        (torch.zeros(3, 4, 4), "got an array of float32"),
        (b"bytes", "got bytes"),
        (None, "got NoneType"),
    ],
)
def test_anything_else_is_a_sentence(recognizer: FaceRecognizer, photo: object, told: str) -> None:
    with pytest.raises(DataError, match=f"a photo must be a path, a PIL image.*{told}"):
        recognizer.embed(photo)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="photo 0 cannot be used: "):
        recognizer.embed([photo, photo])  # type: ignore[list-item]


def test_an_empty_list_is_a_sentence(recognizer: FaceRecognizer) -> None:
    with pytest.raises(ConfigError, match="at least one photo, got an empty list"):
        recognizer.embed([])


def test_heic_files_are_photographs_that_may_not_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.HEIC", "b.avif", "c.jpg"):
        (tmp_path / name).write_bytes(b"no image")
    assert [path.name for path in list_photos(str(tmp_path))] == ["a.HEIC", "b.avif", "c.jpg"]
    monkeypatch.setattr("fedra.faces.photos.photo_files.find_spec", lambda name: None)
    with pytest.raises(DataError, match="HEIC needs pillow-heif: pip install pillow-heif"):
        read_photo(tmp_path / "a.HEIC")
    called: list[int] = []
    module = types.ModuleType("pillow_heif")
    module.register_heif_opener = lambda: called.append(1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pillow_heif", module)
    monkeypatch.setattr("fedra.faces.photos.photo_files.find_spec", lambda name: module)
    with pytest.raises(DataError, match="not an image"):
        read_photo(tmp_path / "a.HEIC")
    assert called == [1]


# faces


def test_all_faces_of_a_group(group: Bytes, recognizer: FaceRecognizer, photographs: Path) -> None:
    faces = recognizer.detect(group)
    assert [round(face.score or 0, 1) for face in faces] == [0.9, 0.8, 0.7, 0.6]
    for number, face in enumerate(faces):
        alone = recognizer.main_face(photographs / f"person_{number:05d}/0000.jpg")
        assert isinstance(face, Face)
        assert face.crop.shape == (32, 32, 3)
        # The rotated crop sees beyond a photograph's border, where its neighbor in the group is.
        assert torch.nn.functional.cosine_similarity(face.embedding, alone.embedding, dim=0) > 0.5
        assert face.landmarks is not None
        assert "score=" in repr(face)


def test_faces_of_a_photo_are_embedded_at_once(
    group: Bytes, source: ModelSource, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    recognizer = FaceRecognizer(source, detector)
    embed = recognizer.embed_crops
    monkeypatch.setattr(recognizer._finder, "_embed", lambda crops: asked.append(len(crops)) or embed(crops))
    faces = recognizer.detect(group)
    assert asked == []
    assert len({tuple(face.embedding.tolist()) for face in faces}) == 4
    assert asked == [4]


def test_several_faces_where_one_is_expected_are_reported(group: Bytes, recognizer: FaceRecognizer) -> None:
    with pytest.warns(FaceWarning, match=r"the photo shows 4 faces; the largest near the center was used, at 2\d\d,"):
        found = recognizer.embed(group)
    torch.testing.assert_close(found, recognizer.detect(group)[2].embedding)
    with pytest.warns(FaceWarning, match="shows 4 faces"):
        assert "shows 4 faces" in recognizer.verify(group, group).notes[0]


def test_no_face_and_no_detector_are_sentences(source: ModelSource, recognizer: FaceRecognizer) -> None:
    blank = np.zeros((50, 60, 3), dtype=np.uint8)
    assert recognizer.detect(blank) == []
    with pytest.raises(DataError, match="no face was found in the photo"):
        recognizer.embed(blank)
    with pytest.raises(ConfigError, match="needs a detector"):
        FaceRecognizer(source).detect(blank)


class Fixed:
    """A detector of one face."""

    fingerprint = "fixed 1"

    def __init__(self, box: list[float], landmarks: np.ndarray) -> None:
        self._face = Detection(np.array(box), 0.7, landmarks)

    def __call__(self, image: Bytes) -> list[Detection]:
        return [self._face]


def test_small_and_turned_faces_have_notes() -> None:
    blank = np.zeros((90, 90, 3), dtype=np.uint8)
    points = template(112) / 10
    small = FaceRecognizer(means, Fixed([0, 0, 9, 11], points), size=112)
    assert small.main_face(blank).notes == (
        "the face in the photo has only 9x11 pixels, so its recognition is unreliable",
    )
    turned = FaceRecognizer(means, Fixed([0, 0, 90, 90], np.stack([90 - points[:, 1], points[:, 0]], axis=1)), size=112)
    assert "lies on its side" in turned.main_face(blank).notes[0]
    assert not FaceRecognizer(means, Fixed([0, 0, 90, 90], points), size=112).main_face(blank).notes


def test_known_points_take_the_place_of_a_detector(
    photographs: Path, source: ModelSource, recognizer: FaceRecognizer, tmp_path: Path
) -> None:
    known = FaceRecognizer(source, KnownPoints(str(photographs / "points.json")))
    path = photographs / "person_00002/0001.jpg"
    torch.testing.assert_close(known.embed(path), recognizer.embed(path))
    assert known.preparation == "aligned to 32x32 by known-points"
    with pytest.raises(DataError, match="known points need the path of a photo"):
        known.embed(read_photo(path))
    elsewhere = tmp_path / "a.jpg"
    elsewhere.write_bytes(path.read_bytes())
    with pytest.raises(DataError, match="must be in the folder"):
        known.embed(elsewhere)


# models


def test_photographs_are_aligned_before_they_are_embedded(photographs: Path, recognizer: FaceRecognizer) -> None:
    paths = sorted((photographs / "person_00001").glob("*.jpg"))
    found = recognizer.embed(paths)
    expected = recognizer.embed_crops([recognizer.main_face(path).crop for path in paths])
    torch.testing.assert_close(found, expected)
    assert recognizer.preparation == "aligned to 32x32 by acquainted"
    torch.testing.assert_close(recognizer.embed(paths[1]), found[1], rtol=1e-4, atol=1e-5)


def test_without_a_detector_crops_are_taken_as_they_are(source: ModelSource, tmp_path: Path, photographs: Path) -> None:
    plain = FaceRecognizer(source)
    crop = SyntheticFaces(size=32).images([(0, 0)])[0]
    Image.fromarray(crop.permute(1, 2, 0).numpy()).save(tmp_path / "crop.png")
    torch.testing.assert_close(plain.embed(tmp_path / "crop.png"), source.embedder()(crop[None])[0])
    photograph = photographs / "person_00000/0000.jpg"
    with pytest.raises(DataError, match=r"model reads 32x32\), got 80x100: give a detector, or align the photo"):
        plain.embed(photograph)
    assert plain.embed_usable([photograph]).problems.keys() == {0}
    assert "no detector" in plain.preparation
    assert plain.main_face(crop).score is None


def test_weight_files_are_opened_by_their_network(tmp_path: Path, photographs: Path, detector: Detector) -> None:
    narrow = build("mobilefacenet-tiny", (3, 32, 24), 3, seed=5, embedding=8)
    file = tmp_path / "net.safetensors"
    safetensors.torch.save_file(narrow.state_dict(), file)
    made = FaceRecognizer(str(file), detector, network="mobilefacenet-tiny:embedding=8", input="32x24")
    assert made.embed(photographs / "person_00000/0000.jpg").shape == (8,)
    assert made.side == 32
    other = FaceRecognizer(file, detector, network="mobilefacenet-tiny:embedding=8", input=(32, 32))
    assert made.fingerprint != other.fingerprint
    with pytest.raises(ConfigError, match=r"network must be set for the weight file .*: name it, such as"):
        FaceRecognizer(file)
    with pytest.raises(ConfigError, match="are only for a module or callable"):
        FaceRecognizer(file, network="mobilefacenet-tiny", size=32)
    assert read_size("112X96") == (112, 96)
    assert read_size(64) == (64, 64)
    for wrong in ("112", "0x5", "ax5", "1x2x3", 0, (3, -1)):
        with pytest.raises(ConfigError, match="size must be height x width"):
            read_size(wrong)  # type: ignore[arg-type]


def test_missing_models_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot be read.*: give the current path of the model"):
        ModelSource(path="nowhere").fingerprint()
    with pytest.raises(RunError, match=r"without a model.safetensors"):
        FaceRecognizer(tmp_path)
    with pytest.raises(ConfigError, match=r"model must be the folder of a run.* got an object of type int"):
        FaceRecognizer(5)


def test_a_module_of_ones_own(photographs: Path, detector: Detector) -> None:
    torch.manual_seed(0)
    net = Net()
    net.norm.running_mean = torch.tensor([0.1, 0.2, 0.3])
    with pytest.raises(ConfigError, match="size must be set for a module or callable"):
        FaceRecognizer(net, detector)
    recognizer = FaceRecognizer(net, detector, size=32)
    found = recognizer.embed(photographs / "person_00000/0000.jpg")
    crop = torch.from_numpy(recognizer.main_face(photographs / "person_00000/0000.jpg").crop.copy())
    ready = (crop.permute(2, 0, 1)[None] / 255 - 0.5) / 0.5
    assert net.training  # as it was before
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(found, (net(ready) + net(ready.flip(-1)))[0])
    same = recognizer.fingerprint
    assert FaceRecognizer(net, size=32).fingerprint == same
    assert FaceRecognizer(net, size=64).fingerprint != same
    with torch.no_grad():
        net.line.bias += 1
    assert FaceRecognizer(net, size=32).fingerprint != same


def test_a_callable_of_ones_own(photographs: Path, detector: Detector) -> None:
    path = photographs / "person_00000/0000.jpg"
    recognizer = FaceRecognizer(means, detector, size=(32, 32))
    assert recognizer.embed(path).shape == (48,)
    assert recognizer.verify(path, path, threshold=0.9).same is True
    assert recognizer.verify(path, path).same is None
    with pytest.raises(ConfigError, match="pass fingerprint='a name for this version"):
        recognizer.fingerprint  # noqa: B018
    assert FaceRecognizer(means, size=32, fingerprint="means 1").fingerprint == "means 1"
    with pytest.raises(ConfigError, match=r"one embedding per image, N = 1"):
        FaceRecognizer(lambda images: images.mean(), detector, size=32).embed(path)
    with pytest.raises(ConfigError, match="are only for a weight file"):
        FaceRecognizer(means, network="mobilefacenet", size=32)


def test_models_that_read_gray_images(detector: Detector, photographs: Path, tmp_path: Path) -> None:
    import tiny
    from fedra import run

    config = tiny.table(
        data={"name": "synthetic", "examples": 60, "test_examples": 12, "classes": 3, "shape": [1, 32, 32]},
        model={"name": "mobilefacenet-tiny", "embedding": 16},
        rounds=1,
    )
    run(config, out=tmp_path / "run")
    recognizer = FaceRecognizer(tmp_path / "run", detector)
    face = recognizer.main_face(photographs / "person_00000/0000.jpg")
    assert face.crop.shape == (32, 32, 1)
    assert face.embedding.shape == (16,)


# verification


def test_verification_decides_by_a_threshold(photographs: Path, recognizer: FaceRecognizer) -> None:
    one, two = (photographs / f"person_00001/000{number}.jpg" for number in range(2))
    found = recognizer.verify(one, str(two))
    assert (found.threshold, found.same, found.decision) == (None, None, None)
    expected = torch.nn.functional.cosine_similarity(recognizer.embed(one), recognizer.embed(two), dim=0)
    assert found.score == pytest.approx(float(expected), abs=1e-5)
    assert recognizer.verify(one, two, threshold=found.score - 0.01).same is True
    assert recognizer.verify(one, two, threshold=found.score + 0.01).same is False
    recognizer.decision = decision(recognizer, found.score - 0.01)
    try:
        assert recognizer.verify(one, two).same is True
        with pytest.raises(ConfigError, match="got one for another model"):
            recognizer.decision = recognizer.decision.model_copy(update={"fingerprint": "x"})
    finally:
        recognizer.decision = None
