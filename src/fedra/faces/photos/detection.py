"""Where the faces are: what every detector gives, and which face of several is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedra.data.decoding import Bytes
from fedra.faces.photos.landmarks import Points

Boxes = NDArray[np.float64]
"""(N, 4): left, top, right, bottom in pixels."""


@dataclass(frozen=True, eq=False)
class Face:
    """A found face: its box (left, top, right, bottom), how sure the detector is (0 to 1), and its five points."""

    box: NDArray[np.float64]
    score: float
    points: Points


class Detector(Protocol):
    """Finds the faces of an image, uint8 (H, W, 3) RGB of any size, the surest first.

    `fingerprint` tells detectors apart: equal ones find the same faces.
    """

    fingerprint: str

    def __call__(self, image: Bytes) -> list[Face]: ...


def main_face(faces: Sequence[Face], shape: tuple[int, ...]) -> Face | None:
    """Whom the photograph (height, width, ...) is of: the largest area minus twice the squared distance to its middle.

    None where no face was found.
    """
    middle = np.array([shape[1], shape[0]]) / 2

    def importance(face: Face) -> float:
        corner, opposite = face.box[:2], face.box[2:]
        area = float(np.prod(np.maximum(opposite - corner, 0)))
        return area - 2 * float((((corner + opposite) / 2 - middle) ** 2).sum())

    return max(faces, key=importance, default=None)


def areas(boxes: Boxes) -> NDArray[np.float64]:
    """The area of every box, 0 for one turned inside out."""
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    product: NDArray[np.float64] = sides[:, 0] * sides[:, 1]
    return product


def suppress(boxes: Boxes, scores: NDArray[np.float64], limit: float, *, of_smaller: bool = False) -> NDArray[np.int64]:
    """Non-maximum suppression: the boxes to keep, the surest first; none overlaps a surer one by more than `limit`.

    The overlap is intersection over union, or over the smaller of the two.
    """
    order = np.argsort(-scores, kind="stable")
    sizes = areas(boxes)
    kept: list[int] = []
    while len(order):
        best, rest = order[0], order[1:]
        kept.append(int(best))
        corner = np.maximum(boxes[best, :2], boxes[rest, :2])
        shared = areas(np.hstack([corner, np.minimum(boxes[best, 2:], boxes[rest, 2:])]))
        whole = np.minimum(sizes[best], sizes[rest]) if of_smaller else sizes[best] + sizes[rest] - shared
        order = rest[shared <= limit * whole]
    return np.array(kept, dtype=np.int64)
