"""The five landmarks used for alignment and their target positions in an aligned crop."""

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

"Left" means left in the image.
"""
FARTHEST = 1e9
"""Maximum coordinate in pixels; the squares of much larger numbers overflow."""


def template(size: int = TEMPLATE_SIDE) -> Points:
    """Return the target positions of the five landmarks in an aligned crop.

    They are InsightFace's, scaled by size / 112. For multiples of 128, for which InsightFace pads both sides, they are
    scaled by size / 128 and shifted right by 8 size / 128.

    Args:
        size: Side of the aligned crop in pixels.

    Returns:
        Points (5, 2), x first: eyes, tip of the nose, corners of the mouth; left in the image first.

    Example:
        >>> template(112)[0]
        array([38.2946, 51.6963])
    """
    if size < 1:
        raise ConfigError(f"size must be at least 1 pixel (usually 112), got {size}")
    if size % TEMPLATE_SIDE and size % 128 == 0:
        return (TEMPLATE + [8, 0]) * (size / 128)
    return TEMPLATE * (size / TEMPLATE_SIDE)


def five_points(points: ArrayLike) -> Points:
    """Return five landmarks of a face, given five or the 68 of the iBUG scheme.

    Of the 68, an eye is the midpoint of its corners (36 and 39, 42 and 45), the nose is 30, and the corners of the
    mouth are 48 and 54.

    Args:
        points: (5, 2) or (68, 2), x first.

    Returns:
        Points (5, 2). Other shapes, NaN and infinity raise `DataError`.

    Example:
        >>> five_points(landmarks_of_dlib).shape
        (5, 2)
    """
    found: NDArray[Any] = np.asarray(points, dtype=np.float64)
    if found.shape == (68, 2):
        found = np.stack([found[[36, 39]].mean(axis=0), found[[42, 45]].mean(axis=0), found[30], found[48], found[54]])
    if found.shape != (5, 2):
        raise DataError(f"the landmarks of a face must be 5 or 68 points (x, y), got shape {found.shape}")
    if not np.isfinite(found).all():
        raise DataError(
            "the landmarks of a face must be finite, got NaN or infinity: check the detector or points file"
        )
    if (farthest := float(np.abs(found).max())) > FARTHEST:
        raise DataError(
            f"the landmarks of a face must be at most {FARTHEST:g} pixels, got {farthest:g}: check the detector or "
            "points file"
        )
    return found
