"""The points by which a face is aligned: eyes, tip of the nose and corners of the mouth, and where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedra.errors import ConfigError, DataError

Points = NDArray[np.float64]
"""Points (N, 2) in pixels, x first; the center of the first pixel is (0, 0)."""

TEMPLATE_SIDE = 112
TEMPLATE: Points = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
"""InsightFace's template in an image of 112x112: left eye, right eye, nose, left and right corner of the mouth.

Left is the image's left throughout.
"""
FARTHEST = 1e9
"""Pixels beyond which no point can lie; the squares of far larger numbers are infinite."""


def template(size: int = TEMPLATE_SIDE) -> Points:
    """The five points in a square of `size` pixels.

    Scaled by size / 112; for multiples of 128, which InsightFace widens on both sides, by size / 128 and moved right
    by 8 size / 128.

    Args:
        size: Side of the aligned crop.

    Returns:
        Points (5, 2), x first: eyes, tip of the nose, corners of the mouth; the image's left first.

    Example:
        >>> template(112)[0]
        array([38.2946, 51.6963])
    """
    if size < 1:
        raise ConfigError(f"faces cannot be aligned to {size} pixels: give a size of 1 or more, usually 112")
    if size % TEMPLATE_SIDE and size % 128 == 0:
        return (TEMPLATE + [8, 0]) * (size / 128)
    return TEMPLATE * (size / TEMPLATE_SIDE)


def five_points(points: ArrayLike) -> Points:
    """Five points of a face, from five or from the 68 of the iBUG scheme.

    Of 68, an eye is the middle of its corners (36 and 39, 42 and 45), the nose is 30, the mouth's corners 48 and 54.

    Args:
        points: (5, 2) or (68, 2), x first.

    Returns:
        Points (5, 2); anything else, NaN and infinity are refused.

    Example:
        >>> five_points(landmarks_of_dlib).shape
        (5, 2)
    """
    found: NDArray[Any] = np.asarray(points, dtype=np.float64)
    if found.shape == (68, 2):
        found = np.stack([found[[36, 39]].mean(axis=0), found[[42, 45]].mean(axis=0), found[30], found[48], found[54]])
    if found.shape != (5, 2):
        raise DataError(f"the landmarks of a face are of shape {found.shape}: give 5 or 68 points (x, y)")
    if not np.isfinite(found).all():
        raise DataError("the landmarks of a face hold NaN or infinity: check where they come from")
    if (farthest := float(np.abs(found).max())) > FARTHEST:
        raise DataError(f"the landmarks of a face hold {farthest:g}, which is in no image: check where they come from")
    return found
