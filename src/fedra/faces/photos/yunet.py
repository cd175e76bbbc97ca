"""YuNet (Wu, Peng and Yu, Machine Intelligence Research 2023): a small detector of faces and five landmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedra.data.decoding import Bytes
from fedra.data.download import RemoteFile, locate
from fedra.data.loading import data_root
from fedra.errors import ConfigError, DataError
from fedra.faces.photos.detection import Detection, suppress
from fedra.faces.photos.onnx_network import Floats, Network
from fedra.faces.photos.resizing import resize

PUBLIC = RemoteFile(
    "face_detection_yunet_2023mar.onnx",
    (
        "https://github.com/opencv/opencv_zoo/raw/main/models/face_detection_yunet/face_detection_yunet_2023mar.onnx",
        "https://huggingface.co/opencv/face_detection_yunet/resolve/main/face_detection_yunet_2023mar.onnx",
    ),
    sha256="8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4",
    size=232_589,
)
"""The file of the OpenCV Zoo, under the MIT license."""

STRIDES = (8, 16, 32)
KINDS = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
"""Outputs of each stride, and their numbers per cell."""
LARGEST = 10.0
"""Logarithm of the largest side of a face, in cells: far beyond any image."""
SIDES = (640, 320, 1280)
"""Longer sides to resize the image to, tried in order until a face is found: small images reveal large faces."""


def public_yunet() -> Path:
    """Return the public file in the data root's folder `weights`, downloaded and verified if needed."""
    return locate(PUBLIC, (data_root() / "weights",))


class YuNet:
    """YuNet from an ONNX file with outputs cls, obj, bbox and kps for the strides 8, 16 and 32.

    At stride s every cell (column c, row r) proposes a face with score sqrt(cls obj), center ((c, r) + b_01) s, sides
    exp(b_23) s and points ((c, r) + k) s. Dropped are faces below `score`, and those that overlap a face with a higher
    score by more than `overlap`.
    """

    def __init__(self, path: Path | str, *, score: float = 0.6, overlap: float = 0.3) -> None:
        path = Path(path)
        self._network = Network(path)
        self._score, self._overlap = score, overlap
        required = {f"{kind}_{stride}" for kind in KINDS for stride in STRIDES}
        if required - self._network.outputs.keys():
            names = ", ".join(self._network.outputs)
            raise DataError(
                f"the detector file '{path}' must be a YuNet network, got one with the outputs {names}: give YuNet of "
                "2022 or later, or a folder with MTCNN's pnet.onnx, rnet.onnx and onet.onnx"
            )
        self._network.take_images()
        height, width = self._network.input_shape[1:3]
        self._fixed = (height, width) if isinstance(height, int) and isinstance(width, int) else None
        self.fingerprint = f"yunet {self._network.sha256[:16]} {score:g} {overlap:g}"

    def __call__(self, image: Bytes) -> list[Detection]:
        largest = min(self._fixed) if self._fixed else max(SIDES)
        sides = dict.fromkeys(min(side, largest, max(image.shape[:2])) for side in SIDES)
        return next((faces for side in sides if (faces := self._detect_at(image, side))), [])

    def _detect_at(self, image: Bytes, side: int) -> list[Detection]:
        """Detect faces in the image resized to a longer side of `side` pixels."""
        height, width = image.shape[:2]
        scale = side / max(height, width)
        size = max(1, round(height * scale)), max(1, round(width * scale))
        canvas = self._pad(resize(image, size))
        boxes, scores, points = self._decode(self._network(canvas), canvas.shape[1:3])
        ratio = np.array([width / size[1], height / size[0]])
        return [
            Detection((boxes[row].reshape(2, 2) * ratio).ravel(), float(scores[row]), points[row] * ratio)
            for row in suppress(boxes, scores, self._overlap)
        ]

    def _pad(self, image: Bytes) -> Bytes:
        """Return the network's input (1, H, W, 3): padded at the right and bottom to a multiple of a cell."""
        height, width = image.shape[:2]
        sides = self._fixed or tuple(-(-side // STRIDES[-1]) * STRIDES[-1] for side in (height, width))
        if sides == (height, width):
            return image[None]
        canvas = np.zeros((1, *sides, 3), dtype=np.uint8)
        canvas[0, :height, :width] = image
        return canvas

    def _decode(
        self, found: dict[str, Floats], sides: tuple[int, ...]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return boxes (N, 4), scores (N,) and points (N, 5, 2) of all cells that reach the score."""
        cells, values = [np.zeros((0, 3))], [np.zeros((0, sum(KINDS.values())))]
        for stride in STRIDES:
            count = (sides[0] // stride) * (sides[1] // stride)
            outputs = [self._checked(f"{kind}_{stride}", found, (1, count, width)) for kind, width in KINDS.items()]
            # Most cells are far below the score: only the others are decoded, in double precision.
            rows = np.flatnonzero(outputs[0] * outputs[1] >= 0.99 * self._score**2)
            if len(rows):
                columns = sides[1] // stride
                cells.append(np.stack([rows % columns, rows // columns, np.full(len(rows), stride)], axis=1))
                values.append(np.concatenate([output[rows] for output in outputs], axis=1))
        cell, value = np.concatenate(cells), np.concatenate(values)
        corner, strides = cell[:, :2], cell[:, 2:]
        scores = np.sqrt(value[:, :2].clip(0, 1).prod(axis=1))
        center, half = (corner + value[:, 2:4]) * strides, np.exp(value[:, 4:6].clip(max=LARGEST)) * strides / 2
        boxes = np.concatenate([center - half, center + half], axis=1)
        points = (corner[:, None] + value[:, 6:].reshape(-1, 5, 2)) * strides[:, None]
        kept = (scores >= self._score) & np.isfinite(value).all(axis=1)
        return boxes[kept], scores[kept], points[kept]

    def _checked(self, name: str, found: dict[str, Floats], shape: tuple[int, ...]) -> Floats:
        """Return an output without its first dimension, or raise if its shape is not YuNet's."""
        values = found[name]
        if values.shape != shape:
            raise ConfigError(
                f"the output '{name}' of the detector file '{self._network.path}' must have the shape {shape}, got "
                f"{values.shape}: give YuNet of 2022 or later"
            )
        first: Floats = values[0]
        return first
