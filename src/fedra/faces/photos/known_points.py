"""Landmarks from a file, by the path of each photo."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePath

import numpy as np

from fedra.errors import DataError
from fedra.faces.photos.landmarks import Points, five_points


class KnownPoints:
    """Landmarks of photos from a JSON file, used instead of a detector.

    Args:
        path: A JSON file, {"person/photo.jpg": [[x, y], ...], ...} with five or 68 points each. Paths are relative to
            the folder of photos, with forward slashes.
        folder: The folder of photos; default: the folder of the JSON file.

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
            raise DataError(f"the points file '{path}' cannot be read ({reason}): give a JSON file") from None
        if not isinstance(found, dict):
            raise DataError(
                f"the points file '{path}' must be {{path: [[x, y], ...], ...}}, got a {type(found).__name__}"
            )
        self._points = found
        self.fingerprint = f"known-points {hashlib.sha256(content).hexdigest()[:16]}"

    def of(self, photograph: PurePath | str) -> Points:
        """Return the five points of a photo.

        Args:
            photograph: Path of the photo relative to the folder of photos.

        Returns:
            Points (5, 2), x first.

        Example:
            >>> KnownPoints("photos/points.json").of("person_00000/0000.jpg").shape
            (5, 2)
        """
        name = PurePath(photograph).as_posix()
        if name not in self._points:
            raise DataError(f"'{name}' is not in the points file")
        try:
            points = np.asarray(self._points[name], dtype=np.float64)
        except (ValueError, TypeError, OverflowError):
            raise DataError(f"the points of '{name}' must be a list of [x, y]") from None
        return five_points(points)

    def of_file(self, photo: object) -> Points:
        """Return the five points of a photo by its own path.

        Args:
            photo: Path of the photo.

        Returns:
            Points (5, 2), x first.

        Example:
            >>> KnownPoints("photos/points.json").of_file("photos/person_00000/0000.jpg").shape
            (5, 2)
        """
        if not isinstance(photo, (str, Path)):
            raise DataError("known points need the path of a photo: give a path, or use a detector")
        path = Path(photo).resolve()
        if not path.is_relative_to(self._folder):
            raise DataError(f"'{photo}' must be in the folder '{self._folder}' for its points to be known")
        return self.of(path.relative_to(self._folder))
