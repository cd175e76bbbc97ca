"""Read a photo, detect and align its faces, and choose the main face."""

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
"""A face that is enlarged by more than this factor has too few pixels for reliable recognition."""
STEEP = 60.0
"""Angle in degrees of the line between the eyes above which a face is reported as lying on its side."""


class FaceFinder:
    """Detects faces and cuts out aligned crops for a model with input (channels, height, width)."""

    def __init__(
        self,
        detector: Detector | KnownPoints | None,
        shape: tuple[int, ...],
        embed: Callable[[Sequence[Bytes]], Tensor],
    ) -> None:
        self._detector, self._shape, self._embed = detector, shape, embed
        self._side = max(shape[1:])

    def find(self, photo: Photo, name: str) -> tuple[list[Face], tuple[int, ...]]:
        """Return all faces of a photo, which messages call `name`, and the shape of the photo."""
        image = _read(photo, name)
        if self._detector is None:
            return [self._face_of_crop(name, image)], image.shape
        detections = self._detect(self._detector, photo, name, image)
        crops = [self._convert_color(align_face(image, found.landmarks, self._side)) for found in detections]
        batch = CropBatch(crops, self._embed)
        faces = [
            Face(found.box, found.score, found.landmarks, batch, row, self._notes(name, found))
            for row, found in enumerate(detections)
        ]
        return faces, image.shape

    def main(self, photo: Photo, name: str) -> Face:
        """Return the main face of a photo, with a note if there are several."""
        faces, shape = self.find(photo, name)
        main = main_face(faces, shape)
        if main is None:
            raise DataError(f"no face was found in {name}: use another photo")
        if len(faces) == 1:
            return main
        left, top, right, bottom = (round(float(side)) for side in main.box)
        several = (
            f"{name} shows {len(faces)} faces; the largest near the center was used, at {left}, {top} to "
            f"{right}, {bottom}"
        )
        return main.with_notes([several, *main.notes])

    def _face_of_crop(self, name: str, image: Bytes) -> Face:
        """Return the face of a photo that is already an aligned crop."""
        height, width = self._shape[1:]
        if image.shape[:2] not in ((height, width), (self._side, self._side)):
            raise DataError(
                f"{name} must be an aligned crop of {self._side}x{self._side} pixels (the model reads "
                f"{height}x{width}), got {image.shape[0]}x{image.shape[1]}: give a detector, or align the photo first"
            )
        box = np.array([0.0, 0.0, image.shape[1], image.shape[0]])
        return Face(box, None, None, CropBatch([self._convert_color(image)], self._embed), 0)

    def _detect(self, detector: Detector | KnownPoints, photo: Photo, name: str, image: Bytes) -> list[Detection]:
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
        # The box of known points ends at the eyes and mouth, so it is smaller than the face.
        if min(width, height) * SMALL < self._side and not isinstance(self._detector, KnownPoints):
            notes.append(
                f"the face in {name} has only {width:.0f}x{height:.0f} pixels, so its recognition is unreliable"
            )
        if abs(np.degrees(np.arctan2(down, across))) > STEEP:
            notes.append(f"the face in {name} lies on its side: rotate the photo")
        return tuple(notes)

    def _convert_color(self, image: Bytes) -> Bytes:
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
