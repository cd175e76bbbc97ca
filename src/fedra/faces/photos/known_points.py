"""Landmarks that somebody has found already, by the path of each photograph."""

from __future__ import annotations

import json
from pathlib import Path, PurePath

import numpy as np

from fedra.errors import DataError
from fedra.faces.photos.landmarks import Points, five_points


class KnownPoints:
    """The points of photographs from a JSON file: {"person/photo.jpg": [[x, y], ...], ...}, five or 68 of each.

    Paths are relative to the folder of photographs, with forward slashes.
    """

    def __init__(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise DataError(f"the points in '{path}' cannot be read ({reason}): give a JSON file") from None
        if not isinstance(found, dict):
            raise DataError(f"'{path}' holds no points by photograph: give {{path: [[x, y], ...], ...}}")
        self._points = found

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
