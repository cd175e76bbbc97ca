"""Detectors: their decoding on made-up network outputs, and the real YuNet where FEDRA_TEST_YUNET names its file."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedra.data.download import offline
from fedra.errors import ConfigError, DataError
from fedra.faces import Detection, main_face, open_detector
from fedra.faces.photos import mtcnn, yunet
from fedra.faces.photos import onnx_network as onnx
from fedra.faces.photos.detection import suppress
from fedra.faces.photos.photo_files import read_photo_file
from fedra.faces.photos.resizing import resize


def face(left: float, top: float, side: float) -> Detection:
    return Detection(np.array([left, top, left + side, top + side]), 0.9, np.zeros((5, 2)))


def test_the_main_face_is_large_and_central() -> None:
    small, large, aside = face(45, 45, 10), face(30, 30, 40), face(0, 0, 35)
    assert main_face([small, large, aside], (100, 100, 3)) is large
    assert main_face([aside, face(40, 40, 30)], (100, 100, 3)) is not aside
    assert main_face([], (100, 100, 3)) is None


def naive_suppress(boxes: np.ndarray, scores: np.ndarray, limit: float, of_smaller: bool) -> list[int]:
    kept: list[int] = []
    for row in np.argsort(-scores, kind="stable"):
        for other in kept:
            wide = min(boxes[row, 2], boxes[other, 2]) - max(boxes[row, 0], boxes[other, 0])
            high = min(boxes[row, 3], boxes[other, 3]) - max(boxes[row, 1], boxes[other, 1])
            shared = max(wide, 0) * max(high, 0)
            sizes = [(boxes[i, 2] - boxes[i, 0]) * (boxes[i, 3] - boxes[i, 1]) for i in (row, other)]
            if shared > limit * (min(sizes) if of_smaller else sum(sizes) - shared):
                break
        else:
            kept.append(int(row))
    return kept


@pytest.mark.parametrize("of_smaller", [False, True])
def test_suppression_equals_a_loop(of_smaller: bool) -> None:
    draw = np.random.default_rng(1)
    corner = draw.uniform(0, 50, (60, 2))
    boxes, scores = np.hstack([corner, corner + draw.uniform(5, 30, (60, 2))]), draw.uniform(size=60)
    found = suppress(boxes, scores, 0.3, of_smaller=of_smaller)
    assert found.tolist() == naive_suppress(boxes, scores, 0.3, of_smaller)
    assert suppress(np.zeros((0, 4)), np.zeros(0), 0.3).tolist() == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [(31, 20), (40, 57), (90, 100)])
def test_resized_pictures_are_pillow_s(size: tuple[int, int]) -> None:
    picture = Image.fromarray(np.random.default_rng(2).integers(0, 256, (70, 57, 3), dtype=np.uint8))
    expected = np.asarray(picture.resize(size[::-1], Image.Resampling.BILINEAR))
    found = resize(np.asarray(picture), size)  # which may not be written to
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).max() <= 1
    turned = resize(np.array(picture)[::-1], size)
    assert np.abs(turned[::-1].astype(int) - expected).max() <= 1


@pytest.mark.parametrize("box", [(3, 4, 20, 30), (-5, -3, 10, 12), (40, 55, 80, 90), (-9, 90, -2, 99), (70, 0, 75, 5)])
def test_boxes_are_black_outside_the_picture(box: tuple[int, int, int, int]) -> None:
    image = np.random.default_rng(3).integers(1, 256, (70, 57, 3), dtype=np.uint8)
    np.testing.assert_array_equal(mtcnn._cut(image, list(box)), np.asarray(Image.fromarray(image).crop(box)))


class FakeYuNet:
    """In place of a network: one face at a given cell of the middle stride, in pictures that are small enough."""

    sha256 = "0" * 64

    def __init__(self, path: Path, *, sides: tuple[Any, Any] = ("height", "width"), longest: int = 10_000) -> None:
        self.path = path
        self.outputs = {f"{kind}_{stride}": [] for stride in yunet.STRIDES for kind in yunet.KINDS}
        self.input_shape = [1, 3, *sides]
        self.sides, self.longest = sides, longest
        self.seen: list[tuple[int, ...]] = []

    def take_images(self) -> None:
        self.input_shape = [1, *self.sides, 3]

    def __call__(self, canvas: np.ndarray) -> dict[str, np.ndarray]:
        self.seen.append(canvas.shape)
        found = {}
        for stride in yunet.STRIDES:
            rows, columns = (side // stride for side in canvas.shape[1:3])
            for kind, width in yunet.KINDS.items():
                found[f"{kind}_{stride}"] = np.zeros((1, rows * columns, width), np.float32)
            if stride == 16 and max(canvas.shape[1:3]) <= self.longest:
                cell = 2 * columns + 3
                found["cls_16"][0, cell], found["obj_16"][0, cell] = 0.81, 1.2
                found["bbox_16"][0, cell] = (0.5, -0.25, np.log(2), np.log(3))
                found["kps_16"][0, cell] = np.arange(10) / 10
        return found


def fake(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[yunet.YuNet, FakeYuNet]:
    made = FakeYuNet(Path(), **settings)
    monkeypatch.setattr(yunet, "Network", lambda path: made)
    return yunet.YuNet(Path("any.onnx")), made


def test_yunet_s_cells_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, network = fake(monkeypatch)
    (found,) = detector(np.zeros((70, 100, 3), np.uint8))
    assert network.seen == [(1, 96, 128, 3)]
    assert found.score == pytest.approx(0.9)
    np.testing.assert_allclose(found.box, [56 - 16, 28 - 24, 56 + 16, 28 + 24], rtol=1e-6)
    expected = (np.arange(10).reshape(5, 2) / 10 + [3, 2]) * 16
    np.testing.assert_allclose(found.landmarks, expected, rtol=1e-6)


def test_outputs_of_another_shape_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, network = fake(monkeypatch)
    monkeypatch.setattr(
        FakeYuNet, "__call__", lambda self, canvas: {name: np.zeros((1, 5, 1)) for name in self.outputs}
    )
    network.path = Path("odd.onnx")
    with pytest.raises(
        ConfigError, match=r"'cls_8' of .*odd\.onnx' must have the shape \(1, 192, 1\), got \(1, 5, 1\)"
    ):
        detector(np.zeros((70, 100, 3), np.uint8))


def test_faces_that_are_not_finite_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, network = fake(monkeypatch)
    found = network(np.zeros((1, 96, 128, 3), np.uint8))
    found["bbox_16"][0, 2 * 8 + 3, 2:] = 1e30
    monkeypatch.setattr(FakeYuNet, "__call__", lambda self, canvas: found)
    (face,) = detector(np.zeros((96, 128, 3), np.uint8))
    assert np.isfinite(face.box).all()
    found["kps_16"][0, 2 * 8 + 3, 4] = np.nan
    assert detector(np.zeros((96, 128, 3), np.uint8)) == []


def test_large_photographs_are_shrunk_until_a_face_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, network = fake(monkeypatch, longest=320)
    (found,) = detector(np.zeros((1500, 3000, 3), np.uint8))
    assert network.seen == [(1, 320, 640, 3), (1, 160, 320, 3)]
    np.testing.assert_allclose(
        found.landmarks, (np.arange(10).reshape(5, 2) / 10 + [3, 2]) * 16 * 3000 / 320, rtol=1e-6
    )
    detector, network = fake(monkeypatch, longest=0)
    assert detector(np.zeros((2, 1, 3), np.uint8)) == []
    assert network.seen == [(1, 32, 32, 3)]


def test_a_file_of_fixed_size_gets_that_size(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, network = fake(monkeypatch, sides=(640, 640))
    detector(np.zeros((100, 2000, 3), np.uint8))
    assert set(network.seen) == {(1, 640, 640, 3)}


def write_small(path: Path, sides: tuple[Any, Any]) -> None:
    """Write a network of one convolution, whose weights are whole numbers, so that sums are exact in any order."""
    helper = pytest.importorskip("onnx.helper")
    weights = np.random.default_rng(4).integers(-3, 4, (2, 3, 3, 3)).astype(np.float32)
    inputs = [
        helper.make_tensor_value_info("weights", 1, weights.shape),  # as files before ONNX 1.3 list them
        helper.make_tensor_value_info("input", 1, [1, 3, *sides]),
    ]
    outputs = [helper.make_tensor_value_info("output", 1, [1, 2, "rows", "columns"])]
    values = helper.make_tensor("weights", 1, weights.shape, weights.ravel())
    node = helper.make_node("Conv", ["input", "weights"], ["output"])
    graph = helper.make_graph([node], "made", inputs, outputs, [values])
    model = helper.make_model(graph, ir_version=3, opset_imports=[helper.make_opsetid("", 11)])
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("sides", [("height", "width"), (40, 64)])
def test_a_network_that_takes_images_sees_the_planes(tmp_path: Path, sides: tuple[Any, Any]) -> None:
    write_small(tmp_path / "made.onnx", sides)
    image = np.random.default_rng(5).integers(0, 256, (1, 40, 64, 3), dtype=np.uint8)
    network = onnx.Network(tmp_path / "made.onnx")
    expected = network(image[..., ::-1].transpose(0, 3, 1, 2).astype(np.float32))
    network.take_images()
    assert network.input_shape == [1, *sides, 3]
    np.testing.assert_array_equal(network(image)["output"], expected["output"])
    np.testing.assert_array_equal(network(image[:, ::-1])["output"], network(image[:, ::-1].copy())["output"])
    with pytest.raises(
        ConfigError, match=r"made\.onnx' must be a network that runs on 1 x 1 x 1 x 3 numbers, got an error"
    ):
        network(image[:, :1, :1])


def likeness(window: np.ndarray) -> float:
    quarter = len(window) // 4
    middle = np.zeros(window.shape, bool)
    middle[quarter:-quarter, quarter:-quarter] = True
    return float(window[middle].mean() - window[~middle].mean())


class FakeMTCNN:
    """Takes a square for a face whose middle half is bright and whose rim is not; rows may be columns to it."""

    sha256 = "1" * 64

    def __init__(self, path: Path, channels_last: bool) -> None:
        self.path, self.last = path, channels_last
        self.input_shape = ["N", "H", "W", 3] if channels_last else ["N", 3, "H", "W"]

    def __call__(self, values: np.ndarray) -> dict[str, np.ndarray]:
        images = values.transpose(0, 2, 1, 3) if self.last else values.transpose(0, 2, 3, 1)
        bright = images[..., 0] > 0
        if self.path.name == "pnet.onnx":
            rows, columns = ((side - 12) // 2 + 1 for side in bright.shape[1:])
            scores, moves = np.zeros((1, rows, columns, 2), np.float32), np.zeros((1, rows, columns, 4), np.float32)
            for row in range(rows):
                for column in range(columns):
                    scores[0, row, column, 1] = likeness(
                        bright[0, 2 * row : 2 * row + 12, 2 * column : 2 * column + 12]
                    )
            order = (0, 2, 1, 3) if self.last else (0, 3, 1, 2)
            return {"moves": moves.transpose(order), "scores": scores.transpose(order)}
        share = np.array([likeness(window) for window in bright])
        found = {"moves": np.zeros((len(bright), 4)), "scores": np.stack([1 - share, share], axis=1)}
        if self.path.name == "onet.onnx":
            coordinates = np.array([0.3, 0.7, 0.5, 0.35, 0.65, 0.4, 0.4, 0.6, 0.8, 0.8])
            found["points"] = np.tile(coordinates, (len(bright), 1))
        return found


@pytest.mark.parametrize("channels_last", [True, False])
def test_mtcnn_s_three_stages_find_the_face(monkeypatch: pytest.MonkeyPatch, channels_last: bool) -> None:
    monkeypatch.setattr(mtcnn, "Network", lambda path: FakeMTCNN(path, channels_last))
    detector = mtcnn.MTCNN(Path())
    image = np.zeros((90, 130, 3), np.uint8)
    image[30:50, 40:60] = 255
    found = main_face(detector(image), image.shape)
    assert found is not None
    np.testing.assert_allclose(found.box, [30, 20, 70, 60], atol=6)
    expected = found.box[:2] + (found.box[2:] - found.box[:2]) * [
        [0.3, 0.4],
        [0.7, 0.4],
        [0.5, 0.6],
        [0.35, 0.8],
        [0.65, 0.8],
    ]
    np.testing.assert_allclose(found.landmarks, expected, atol=0.6)
    assert detector(np.zeros((90, 130, 3), np.uint8)) == []
    assert detector(np.zeros((3, 3, 3), np.uint8)) == []


def test_wrong_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(DataError, match=r"'.*nowhere\.onnx' does not exist: check the path, or choose 'yunet'"):
        open_detector(tmp_path / "nowhere.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(DataError, match=r"'.*text\.onnx' is not a usable ONNX network"):
        open_detector(tmp_path / "text.onnx")
    with pytest.raises(DataError, match=r"pnet\.onnx is missing: add it, or give YuNet's \.onnx file"):
        open_detector(tmp_path)
    other = FakeYuNet(Path())
    other.outputs = {"logits": []}
    monkeypatch.setattr(yunet, "Network", lambda path: other)
    with pytest.raises(DataError, match="must be a YuNet network, got one with the outputs logits"):
        open_detector(tmp_path / "text.onnx")


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_without_onnxruntime_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    write_small(tmp_path / "any.onnx", ("height", "width"))
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    with pytest.raises(ConfigError, match=rf"needs {missing}: pip install 'fedra\[faces\]'"):
        onnx.Network(tmp_path / "any.onnx").take_images()


def test_the_public_file_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRA_OFFLINE", "1")
    monkeypatch.setenv("FEDRA_DATA", str(tmp_path))
    assert offline()
    with pytest.raises(
        DataError, match=r"face_detection_yunet_2023mar\.onnx must be in .*weights, .*downloads are disabled"
    ):
        open_detector("yunet")


def grace_hopper() -> np.ndarray:
    return read_photo_file(Path(str(resources.files("matplotlib") / "mpl-data/sample_data/grace_hopper.jpg")))


@pytest.mark.skipif("FEDRA_TEST_YUNET" not in os.environ, reason="FEDRA_TEST_YUNET names no YuNet file")
def test_the_real_yunet_finds_a_face_at_every_size() -> None:
    detector = open_detector(os.environ["FEDRA_TEST_YUNET"])
    image = grace_hopper()
    eyes = np.array([[227, 193], [308, 195]])
    for scale in (0.15, 1.0, 4.0):
        side = round(image.shape[1] * scale), round(image.shape[0] * scale)
        resized = np.asarray(Image.fromarray(image).resize(side))
        (found,) = detector(resized)
        assert found.score > 0.8
        np.testing.assert_allclose(found.landmarks[:2] / scale, eyes, atol=15)
    assert detector(np.zeros((200, 300, 3), np.uint8)) == []
