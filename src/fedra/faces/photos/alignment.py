"""Face alignment: the least-squares similarity transform of five landmarks, and the warped image."""

from __future__ import annotations

from functools import lru_cache
from math import hypot

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedra.data.decoding import Bytes
from fedra.errors import DataError
from fedra.faces.photos.landmarks import TEMPLATE_SIDE, Points, five_points, template

Matrix = NDArray[np.float64]
"""(2, 3): maps a point p to M[:, :2] p + M[:, 2]."""
Rows = tuple[tuple[float, float, float], tuple[float, float, float]]
"""The rows of such a matrix: x = across * column + down * row + offset, and the same for y."""
LARGEST_BLOCK = 4096
"""Maximum factor of downscaling: the sums of larger blocks overflow Pillow's 32 bits."""


def similarity(source: Points, target: Points) -> Matrix:
    """Estimate the similarity transform from `source` to `target` by least squares (Umeyama, PAMI 1991).

    It consists of rotation, scale and translation, without reflection. With points as complex numbers, centered, it is
    multiplication by c = sum conj(s) t / sum |s|^2, and M = [[Re c, -Im c], [Im c, Re c] | mean(t) - c mean(s)].

    Args:
        source: Points (N, 2), x first.
        target: Points (N, 2) to map them to.

    Returns:
        A matrix M (2, 3), which maps a point p to M[:, :2] p + M[:, 2].

    Example:
        >>> similarity(face.landmarks, template(112))
    """
    (xs, ys), (to_xs, to_ys), count = source.T.tolist(), target.T.tolist(), len(source)
    x_mean, y_mean, to_x_mean, to_y_mean = (sum(values) / count for values in (xs, ys, to_xs, to_ys))
    real = imaginary = spread = 0.0
    for x, y, to_x, to_y in zip(xs, ys, to_xs, to_ys, strict=True):
        x, y, to_x, to_y = x - x_mean, y - y_mean, to_x - to_x_mean, to_y - to_y_mean
        real += x * to_x + y * to_y
        imaginary += x * to_y - y * to_x
        spread += x * x + y * y
    if spread <= 1e-12 * count * max(1.0, *(value * value for value in (*xs, *ys))):
        raise DataError("the landmarks of a face must differ, got one point: check the detector or points file")
    real, imaginary = real / spread, imaginary / spread
    x_shift = to_x_mean - real * x_mean + imaginary * y_mean
    y_shift = to_y_mean - imaginary * x_mean - real * y_mean
    return np.array([[real, -imaginary, x_shift], [imaginary, real, y_shift]])


def warp(image: Bytes, matrix: Matrix, size: tuple[int, int]) -> Bytes:
    """Warp an image by a matrix M: pixel q of the result is the image at M^-1 q, bilinear, 0 outside the image.

    Positions and weights have single precision, so a value may be rounded to the other of its two nearest levels if it
    lies halfway between them.

    Args:
        image: `uint8` (H, W) or (H, W, C).
        matrix: A matrix (2, 3), as returned by `similarity`.
        size: Height and width of the result.

    Returns:
        A `uint8` array of the given size.

    Example:
        >>> warp(image, similarity(face.landmarks, template(112)), (112, 112))
    """
    import torch

    back = _invert(matrix)
    region = _source_region(back, size, image.shape)
    rows, columns = (part.stop - part.start for part in region)
    if not rows or not columns:
        return np.zeros((*size, *image.shape[2:]), dtype=np.uint8)
    steps = []
    for (across, down, offset), part in zip(back, reversed(region), strict=True):
        scale = 2 / (part.stop - part.start)  # torch's grid goes from -1 to 1, the outer edges of the pixels
        steps.append((across * scale, down * scale, (offset - part.start + 0.5) * scale - 1))
    grid = (np.array(steps, dtype=np.float32) @ _positions(size)).reshape(1, 2, *size)
    pixels = image[region].astype(np.float32).reshape(1, rows, columns, -1)
    values, points = torch.from_numpy(pixels.transpose(0, 3, 1, 2)), torch.from_numpy(grid.transpose(0, 2, 3, 1))
    found = torch.nn.functional.grid_sample(values, points, align_corners=False).numpy()[0]
    found += 0.5
    result = np.empty((*size, len(found)), dtype=np.uint8)
    for channel, plane in enumerate(found.astype(np.uint8)):
        result[..., channel] = plane
    return result.reshape(*size, *image.shape[2:])


@lru_cache(maxsize=1)
def _positions(size: tuple[int, int]) -> NDArray[np.float32]:
    """Return the column, the row and 1 of every pixel, (3, height * width): faces are aligned to the same size."""
    rows, columns = np.indices(size, dtype=np.float32).reshape(2, -1)
    return np.stack([columns, rows, np.ones_like(rows)])


def _invert(matrix: Matrix) -> Rows:
    """Return the rows of the inverse of a matrix (2, 3)."""
    (a, b, x), (c, d, y) = matrix.tolist()
    area = a * d - b * c
    a, b, c, d = d / area, -b / area, -c / area, a / area
    return (a, b, -a * x - b * y), (c, d, -c * x - d * y)


def _source_region(back: Rows, size: tuple[int, int], shape: tuple[int, ...]) -> tuple[slice, slice]:
    """Return the rows and columns of an image that a crop of the given size is interpolated from."""
    parts = []
    for (across, down, offset), limit in zip(back, (shape[1], shape[0]), strict=True):
        right, lower = across * (size[1] - 1), down * (size[0] - 1)
        first = offset + min(right, 0.0) + min(lower, 0.0)
        last = offset + max(right, 0.0) + max(lower, 0.0)
        start = int(min(max(first, 0.0), limit))
        parts.append(slice(start, int(min(max(last + 2, start), limit))))
    return parts[1], parts[0]


def align_face(image: Bytes, points: ArrayLike, size: int = TEMPLATE_SIDE) -> Bytes:
    """Cut out an aligned square crop of a face, with its landmarks at the positions of InsightFace's template.

    A face of at least twice the crop's size is first averaged over blocks of pixels, because bilinear interpolation
    alone would skip pixels.

    Args:
        image: `uint8` (H, W, 3) or (H, W).
        points: Five landmarks (eyes, nose, corners of the mouth; left in the image first), or the 68 of iBUG.
        size: Side of the crop in pixels.

    Returns:
        A `uint8` array (size, size, 3) or (size, size).

    Example:
        >>> align_face(image, detector(image)[0].landmarks).shape
        (112, 112, 3)
    """
    matrix = similarity(five_points(points), template(size))
    scale = hypot(*matrix[:, 0].tolist())
    if scale * LARGEST_BLOCK < 1:
        raise DataError(
            "the landmarks of a face must be in the order eyes, nose, mouth and close enough to form a face: check the "
            "detector or points file"
        )
    block = int(1 / scale + 1e-9)  # a scale of exactly 1/2 may be rounded to slightly more
    if block > 1:
        image, matrix = _average_blocks(image, matrix, block, (size, size))
    return warp(image, matrix, (size, size))


def _average_blocks(image: Bytes, matrix: Matrix, block: int, size: tuple[int, int]) -> tuple[Bytes, Matrix]:
    """Return the means of the blocks of `block` x `block` pixels around a crop, and the matrix from them to the crop.

    Blocks at the border of the image may be smaller.
    """
    from PIL import Image

    turn = matrix[:, :2] * block
    matrix = np.column_stack([turn, matrix[:, 2] + turn @ np.full(2, (block - 1) / (2 * block))])
    whole = tuple(-(-side // block) for side in image.shape[:2])
    # One more block on each side: the matrix of the part is rounded differently.
    rows, columns = (
        slice(max(part.start - 1, 0), part.stop + 1) for part in _source_region(_invert(matrix), size, whole)
    )
    part = image[rows.start * block : rows.stop * block, columns.start * block : columns.stop * block]
    matrix[:, 2] += matrix[:, :2] @ [columns.start, rows.start]
    reduced: Bytes = np.asarray(Image.fromarray(part).reduce(block)) if part.size else part
    return reduced, matrix
