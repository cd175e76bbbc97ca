"""Detections, the interface of a detector, the choice of the main face, and non-maximum suppression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedra.data.decoding import Bytes
from fedra.faces.photos.landmarks import Points

Boxes = NDArray[np.float64]
"""(N, 4): left, top, right, bottom in pixels."""


class HasBox(Protocol):
    """Anything with a box (left, top, right, bottom)."""

    @property
    def box(self) -> NDArray[np.float64]: ...


Boxed = TypeVar("Boxed", bound=HasBox)


@dataclass(frozen=True, eq=False)
class Detection:
    """A face found by a detector.

    Args:
        box: Left, top, right and bottom edge in pixels.
        score: Confidence of the detector, from 0 to 1.
        landmarks: Five points (5, 2), x first: eyes, tip of the nose, corners of the mouth; left in the image first.

    Example:
        >>> Detection(np.array([10.0, 10, 60, 70]), 0.9, landmarks)
    """

    box: NDArray[np.float64]
    score: float
    landmarks: Points


class Detector(Protocol):
    """Interface of a detector: a callable that returns the faces in an image.

    Any callable of this form can be a detector. It receives an image, `uint8` (H, W, 3) in RGB of any size, and returns
    a list of `Detection`, in descending order of the score.

    Attributes:
        fingerprint: Identifier of the detector; detectors with equal fingerprints find the same faces.

    Example:
        >>> class WholeImage:
        ...     fingerprint = "whole image 1"
        ...
        ...     def __call__(self, image):
        ...         height, width = image.shape[:2]
        ...         return [Detection(np.array([0.0, 0, width, height]), 1.0, template(width))]
    """

    fingerprint: str

    def __call__(self, image: Bytes) -> list[Detection]: ...


def main_face(faces: Sequence[Boxed], shape: tuple[int, ...]) -> Boxed | None:
    """Choose the main face: the one with the largest area minus twice the squared distance from the image center.

    Args:
        faces: Faces from a detector or a recognizer.
        shape: Shape of the photo, (height, width, ...).

    Returns:
        The main face; None if `faces` is empty.

    Example:
        >>> main_face(detector(image), image.shape)
    """
    center = np.array([shape[1], shape[0]]) / 2

    def importance(face: HasBox) -> float:
        corner, opposite = face.box[:2], face.box[2:]
        area = float(np.prod(np.maximum(opposite - corner, 0)))
        return area - 2 * float((((corner + opposite) / 2 - center) ** 2).sum())

    return max(faces, key=importance, default=None)


def suppress(boxes: Boxes, scores: NDArray[np.float64], limit: float, *, of_smaller: bool = False) -> NDArray[np.int64]:
    """Apply non-maximum suppression: drop boxes that overlap one with a higher score by more than `limit`.

    Returns the remaining rows in descending order of the score. The overlap is intersection over union, or over the
    smaller box with `of_smaller`.
    """
    order = np.argsort(-scores, kind="stable")
    corners, opposite = boxes[order, :2].T, boxes[order, 2:].T
    sizes = np.maximum(opposite - corners, 0).prod(axis=0)
    kept: list[int] = []
    while len(order):
        kept.append(int(order[0]))
        sides = np.minimum(opposite[:, :1], opposite[:, 1:]) - np.maximum(corners[:, :1], corners[:, 1:])
        wide, high = np.maximum(sides, 0)
        shared = wide * high
        whole = np.minimum(sizes[0], sizes[1:]) if of_smaller else sizes[0] + sizes[1:] - shared
        rest = 1 + np.flatnonzero(shared <= limit * whole)
        order, sizes, corners, opposite = order[rest], sizes[rest], corners[:, rest], opposite[:, rest]
    return np.array(kept, dtype=np.int64)
