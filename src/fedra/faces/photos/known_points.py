"""Landmarks that somebody has found already, by the path of each photograph."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePath

import numpy as np

from fedra.errors import DataError
from fedra.faces.photos.landmarks import Points, five_points


class KnownPoints:
    """The landmarks of photographs from a JSON file, in the place of a detector.

    Args:
        path: A JSON file, {"person/photo.jpg": [[x, y], ...], ...} with five or 68 points each. Paths are relative to
            the folder of photographs, with forward slashes.
        folder: The folder of photographs; the file's own unless given.

    Example:
        >>> recognizer = FaceRecognizer("runs/faces", KnownPoints("photos/points.json"))
        >>> recognizer.embed("photos/person_00000/0000.jpg")
    """

    def __init__(self, path: Path | str, folder: Path | str | None = None) -> None:
        path = Path(path)
        self._folder = Path(path.parent if folder is None else folder).resolve()
        try:
            content = path.read_bytes()
            found = json.loads(content)
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise DataError(f"the points in '{path}' cannot be read ({reason}): give a JSON file") from None
        if not isinstance(found, dict):
            raise DataError(f"'{path}' holds no points by photograph: give {{path: [[x, y], ...], ...}}")
        self._points = found
        self.fingerprint = f"known-points {hashlib.sha256(content).hexdigest()[:16]}"

    def of(self, photograph: PurePath) -> Points:
        """The five points of a photograph."""
        name = photograph.as_posix()
        if name not in self._points:
            raise DataError("its points are not in the file of points")
        try:
            points = np.asarray(self._points[name], dtype=np.float64)
        except (ValueError, TypeError, OverflowError):
            raise DataError("its points are no list of numbers [x, y]") from None
        return five_points(points)

    def of_file(self, photo: object) -> Points:
        """The five points of a photograph by its own path."""
        if not isinstance(photo, (str, Path)):
            raise DataError("known points belong to files: give the path of a photograph, or use a detector")
        path = Path(photo).resolve()
        if not path.is_relative_to(self._folder):
            raise DataError(f"the points of '{photo}' are not known: it is not in the folder '{self._folder}'")
        return self.of(path.relative_to(self._folder))
