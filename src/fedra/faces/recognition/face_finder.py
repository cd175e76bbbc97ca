"""From a photograph to its faces: read, detect, align; and which face of several is meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from fedra.data.decoding import Bytes
from fedra.errors import DataError
from fedra.faces.photos.alignment import align_face
from fedra.faces.photos.any_photo import Photo, read_photo
from fedra.faces.photos.detection import Detection, Detector, main_face
from fedra.faces.photos.known_points import KnownPoints
from fedra.faces.recognition.face import CropBatch, Face

SMALL = 3
"""A face that must be enlarged so many times has too few pixels to be recognized reliably."""
STEEP = 60.0
"""Degrees between the eyes from which a face is taken to lie on its side."""


class FaceFinder:
    """Finds faces and cuts them out as a model reads them, (channels, height, width)."""

    def __init__(
        self,
        detector: Detector | KnownPoints | None,
        shape: tuple[int, ...],
        embed: Callable[[Sequence[Bytes]], Tensor],
    ) -> None:
        self._detector, self._shape, self._embed = detector, shape, embed
        self._side = max(shape[1:])

    def find(self, photo: Photo, name: str) -> tuple[list[Face], tuple[int, ...]]:
        """All faces of a photograph, which messages call `name`, and its shape."""
        image = _read(photo, name)
        if self._detector is None:
            return [self._whole(name, image)], image.shape
        detections = self._detections(self._detector, photo, name, image)
        crops = [self._colored(align_face(image, found.landmarks, self._side)) for found in detections]
        batch = CropBatch(crops, self._embed)
        faces = [
            Face(found.box, found.score, found.landmarks, batch, row, self._notes(name, found))
            for row, found in enumerate(detections)
        ]
        return faces, image.shape

    def main(self, photo: Photo, name: str) -> Face:
        """The face that a photograph is of, with a note where there are several."""
        faces, shape = self.find(photo, name)
        main = main_face(faces, shape)
        if main is None:
            raise DataError(f"no face was found in {name}: use another photograph")
        if len(faces) == 1:
            return main
        left, top, right, bottom = (round(float(side)) for side in main.box)
        several = (
            f"{name} shows {len(faces)} faces; the largest near the middle was used, at {left}, {top} to "
            f"{right}, {bottom}"
        )
        return main.with_notes([several, *main.notes])

    def _whole(self, name: str, image: Bytes) -> Face:
        """A photograph that is an aligned crop already."""
        height, width = self._shape[1:]
        if image.shape[:2] not in ((height, width), (self._side, self._side)):
            raise DataError(
                f"{name} has {image.shape[0]}x{image.shape[1]} pixels and the model reads {height}x{width}: give a "
                f"detector, or align it to {self._side}x{self._side} first"
            )
        box = np.array([0.0, 0.0, image.shape[1], image.shape[0]])
        return Face(box, None, None, CropBatch([self._colored(image)], self._embed), 0)

    def _detections(self, detector: Detector | KnownPoints, photo: Photo, name: str, image: Bytes) -> list[Detection]:
        if not isinstance(detector, KnownPoints):
            return detector(image)
        try:
            points = detector.of_file(photo)
        except DataError as error:
            raise DataError(f"{name} cannot be used: {error}") from None
        return [Detection(np.concatenate([points.min(axis=0), points.max(axis=0)]), 1.0, points)]

    def _notes(self, name: str, found: Detection) -> tuple[str, ...]:
        width, height = found.box[2:] - found.box[:2]
        across, down = found.landmarks[1] - found.landmarks[0]
        notes = []
        # The box of known points ends at eyes and mouth: it is smaller than the face.
        if min(width, height) * SMALL < self._side and not isinstance(self._detector, KnownPoints):
            notes.append(
                f"the face in {name} is only {width:.0f}x{height:.0f} pixels large, so its recognition is unreliable"
            )
        if abs(np.degrees(np.arctan2(down, across))) > STEEP:
            notes.append(f"the face in {name} lies on its side: turn the photograph upright")
        return tuple(notes)

    def _colored(self, image: Bytes) -> Bytes:
        from PIL import Image

        if self._shape[0] == 3:
            return image
        gray: Bytes = np.asarray(Image.fromarray(image).convert("L"))
        return gray[..., None]


def _read(photo: Photo, name: str) -> Bytes:
    try:
        return read_photo(photo)
    except DataError as error:
        raise error if isinstance(photo, (str, Path)) else DataError(f"{name} cannot be used: {error}") from None
