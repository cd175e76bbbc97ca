"""MTCNN (Zhang et al., SPL 2016): a cascade of three networks on an image pyramid."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedra.data.decoding import Bytes
from fedra.errors import DataError
from fedra.faces.photos.detection import Boxes, Detection, suppress
from fedra.faces.photos.onnx_network import Floats, Network
from fedra.faces.photos.resizing import resize

FILES = ("pnet.onnx", "rnet.onnx", "onet.onnx")
CELL, STRIDE = 12, 2
"""Receptive field and stride of the proposal network."""
SHRINK = 0.709
"""Scale from one level of the pyramid to the next, about half of the area."""
LONGEST = 1280
"""Larger photos are resized to this longer side first."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Boxes (N, 4), scores (N,), box corrections (N, 4) relative to the sides, and points (N, 5, 2)."""

    boxes: Boxes
    scores: NDArray[np.float64]
    moves: NDArray[np.float64]
    points: NDArray[np.float64]

    def __getitem__(self, rows: NDArray[np.int64]) -> Candidates:
        return Candidates(self.boxes[rows], self.scores[rows], self.moves[rows], self.points[rows])

    def corrected_boxes(self) -> Boxes:
        """Return the boxes after correction."""
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        corrected: Boxes = self.boxes + self.moves * np.hstack([sides, sides])
        return corrected


class MTCNN:
    """MTCNN from a folder with pnet.onnx, rnet.onnx and onet.onnx; inputs are RGB, (x - 127.5) / 128.

    Networks with channels-last input are assumed to be the facenet variant, which expects transposed images.
    `smallest` is the minimum side of a face in pixels; `scores` are the minimum scores of the three networks.
    """

    def __init__(
        self, folder: Path | str, *, smallest: int = 20, scores: tuple[float, float, float] = (0.6, 0.7, 0.7)
    ) -> None:
        folder = Path(folder)
        self._networks = [Network(folder / name) for name in FILES]
        self._smallest, self._scores = smallest, scores
        for network in self._networks:
            if len(network.input_shape) != 4 or 3 not in (network.input_shape[1], network.input_shape[3]):
                raise DataError(
                    f"the detector file '{network.path}' must read color images, got the input shape "
                    f"{network.input_shape}: give a folder with MTCNN's files"
                )
        digest = hashlib.sha256("".join(network.sha256 for network in self._networks).encode()).hexdigest()
        self.fingerprint = f"mtcnn {digest[:16]} {smallest} {' '.join(f'{score:g}' for score in scores)}"

    def __call__(self, image: Bytes) -> list[Detection]:
        height, width = image.shape[:2]
        scale = min(1.0, LONGEST / max(height, width))
        size = max(1, round(height * scale)), max(1, round(width * scale))
        picture = np.ascontiguousarray(resize(image, size))
        boxes = self._propose(picture)
        boxes = self._refine(picture, boxes)
        found = self._finalize(picture, boxes)
        ratio = np.array([width / size[1], height / size[0]])
        faces = zip(found.boxes, found.scores, found.points, strict=True)
        return [
            Detection((box.reshape(2, 2) * ratio).ravel(), float(score), points * ratio) for box, score, points in faces
        ]

    def _propose(self, picture: Bytes) -> Boxes:
        """Return the squares that the first network proposes on all levels of the pyramid."""
        levels = []
        for scale in self._scales(min(picture.shape[:2])):
            found = self._propose_level(picture, scale)
            levels.append(found[suppress(found.boxes, found.scores, 0.5)])
        if not levels:
            return np.zeros((0, 4))
        parts = zip(*((level.boxes, level.scores, level.moves, level.points) for level in levels), strict=True)
        proposals = Candidates(*(np.concatenate(part) for part in parts))
        return _to_squares(proposals[suppress(proposals.boxes, proposals.scores, 0.7)].corrected_boxes())

    def _scales(self, side: int) -> Iterator[float]:
        scale = CELL / self._smallest
        while side * scale >= CELL:
            yield scale
            scale *= SHRINK

    def _propose_level(self, picture: Bytes, scale: float) -> Candidates:
        height, width = picture.shape[:2]
        size = max(CELL, round(height * scale)), max(CELL, round(width * scale))
        found = self._run(0, resize(picture, size).transpose(2, 0, 1)[None])
        rows, columns = np.nonzero(found[2][0, ..., 1] >= self._scores[0])
        corner = np.stack([columns, rows], axis=1) * STRIDE
        ratio = np.array([width / size[1], height / size[0]])
        boxes = np.hstack([corner * ratio, (corner + CELL) * ratio])
        scores, moves = found[2][0, rows, columns, 1], found[4][0, rows, columns]
        return Candidates(boxes, scores.astype(np.float64), moves.astype(np.float64), np.zeros((len(boxes), 5, 2)))

    def _refine(self, picture: Bytes, boxes: Boxes) -> Boxes:
        """Return the boxes that the second network accepts, corrected."""
        found = self._classify(1, picture, boxes, 24)
        return _to_squares(found[suppress(found.boxes, found.scores, 0.7)].corrected_boxes())

    def _finalize(self, picture: Bytes, boxes: Boxes) -> Candidates:
        """Return the candidates that the third network accepts, with landmarks."""
        found = self._classify(2, picture, boxes, 48)
        final = Candidates(found.corrected_boxes(), found.scores, found.moves, found.points)
        return final[suppress(final.boxes, final.scores, 0.7, of_smaller=True)]

    def _classify(self, stage: int, picture: Bytes, boxes: Boxes, side: int) -> Candidates:
        """Return the candidates that reach the minimum score of a stage."""
        whole = np.round(boxes).astype(np.int64)
        whole = whole[(whole[:, 2:] > whole[:, :2]).all(axis=1)]
        if not len(whole):
            return Candidates(np.zeros((0, 4)), np.zeros(0), np.zeros((0, 4)), np.zeros((0, 5, 2)))
        crops = np.stack([resize(_cut(picture, box), (side, side)).transpose(2, 0, 1) for box in whole.tolist()])
        found = {width: values.astype(np.float64) for width, values in self._run(stage, crops).items()}
        kept = found[2][:, 1] >= self._scores[stage]
        corners, sides = whole[kept, :2], (whole[:, 2:] - whole[:, :2])[kept]
        shares = found[10][kept].reshape(-1, 2, 5).transpose(0, 2, 1) if 10 in found else np.zeros((kept.sum(), 5, 2))
        points = corners[:, None].astype(np.float64) + shares * sides[:, None]
        return Candidates(whole[kept].astype(np.float64), found[2][kept, 1], found[4][kept], points)

    def _run(self, stage: int, images: Bytes) -> dict[int, Floats]:
        """Return a network's outputs, channels last, by number of channels: 2 scores, 4 corrections, 10 coordinates."""
        network = self._networks[stage]
        values = images.astype(np.float32)
        values -= 127.5
        values /= 128
        last = network.input_shape[3] == 3
        found = network(values.transpose(0, 3, 2, 1) if last else values)
        outputs = [_channels_last(output, transposed=last) for output in found.values()]
        by_width = {output.shape[-1]: output for output in outputs}
        if not {2, 4} <= by_width.keys() or (stage == 2 and 10 not in by_width):
            widths = ", ".join(str(width) for width in by_width)
            raise DataError(
                f"the detector file '{network.path}' must be MTCNN's {FILES[stage]}, got a network with outputs of "
                f"{widths} numbers: give MTCNN's files"
            )
        return by_width


def _channels_last(output: Floats, *, transposed: bool) -> Floats:
    if output.ndim == 4:
        return output.transpose(0, 2, 1, 3) if transposed else output.transpose(0, 2, 3, 1)
    return output


def _cut(image: Bytes, box: list[int]) -> Bytes:
    """Return the pixels in a box, black outside the image."""
    left, top, right, bottom = box
    rows, columns = slice(max(top, 0), max(bottom, 0)), slice(max(left, 0), max(right, 0))
    part = image[rows, columns]
    if part.shape[:2] == (bottom - top, right - left):
        return part
    cut = np.zeros((bottom - top, right - left, 3), dtype=np.uint8)
    cut[max(-top, 0) :, max(-left, 0) :][: part.shape[0], : part.shape[1]] = part
    return cut


def _to_squares(boxes: Boxes) -> Boxes:
    """Replace each box by a square with the same center and its longer side."""
    center = (boxes[:, :2] + boxes[:, 2:]) / 2
    half = (boxes[:, 2:] - boxes[:, :2]).max(axis=1, keepdims=True) / 2
    return np.hstack([center - half, center + half])
