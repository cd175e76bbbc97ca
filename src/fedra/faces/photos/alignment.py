"""From five points to an upright face: the least-squares similarity, and the picture under it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedra.data.decoding import Bytes
from fedra.errors import DataError
from fedra.faces.photos.landmarks import TEMPLATE_SIDE, Points, five_points, template

Matrix = NDArray[np.float64]
"""(2, 3): a point p goes to M[:, :2] p + M[:, 2]."""
LARGEST_BLOCK = 4096
"""The most by which a face is made smaller: the sums of such blocks still fit into Pillow's 32 bits."""


def similarity(source: Points, target: Points) -> Matrix:
    """The rotation, scale and shift that bring `source` nearest to `target` (Umeyama, PAMI 1991); never a reflection.

    With centered points, A = 1/n sum t s^T = U S V^T, D = diag(1, sign(det U det V)), R = U D V^T,
    c = tr(S D) / var(s): M = [c R | mean(t) - c R mean(s)].

    Args:
        source: Points (N, 2), x first.
        target: As many points.

    Returns:
        A matrix (2, 3): a point p goes to M[:, :2] p + M[:, 2].

    Example:
        >>> similarity(face.landmarks, template(112))
    """
    middle, goal = source.mean(axis=0), target.mean(axis=0)
    centered = source - middle
    spread = float((centered**2).sum(axis=1).mean())
    if spread <= 1e-12 * max(1.0, float((source**2).max())):
        raise DataError("the landmarks of a face are one and the same point: check where they come from")
    left, lengths, right = np.linalg.svd((target - goal).T @ centered / len(source))
    signs = np.array([1.0, np.sign(np.linalg.det(left) * np.linalg.det(right))])
    turned = (left * signs) @ right * (float(lengths @ signs) / spread)
    return np.column_stack([turned, goal - turned @ middle])


def warp(image: Bytes, matrix: Matrix, size: tuple[int, int]) -> Bytes:
    """A picture under a matrix: bilinear, and 0 beyond its border. Pixel q of the result is the picture at M^-1 q.

    Args:
        image: `uint8` (H, W) or (H, W, C).
        matrix: As `similarity` gives it.
        size: Height and width of the result.

    Returns:
        A `uint8` array of that size.

    Example:
        >>> warp(image, similarity(face.landmarks, template(112)), (112, 112))
    """
    rows, columns = np.indices(size, dtype=np.float64)
    back = np.linalg.inv(matrix[:, :2])
    x, y = (back @ (np.stack([columns.ravel(), rows.ravel()]) - matrix[:, 2:])).reshape(2, *size)
    left, top = np.floor(x), np.floor(y)
    across, down = x - left, y - top
    shape = (*size, *(1,) * (image.ndim - 2))
    total = np.zeros((*size, *image.shape[2:]))
    for below, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        weight = (down if below else 1 - down) * (across if right else 1 - across)
        total += weight.reshape(shape) * _pixels(image, top + below, left + right).reshape(*size, *image.shape[2:])
    return np.floor(total + 0.5).astype(np.uint8)


def _pixels(image: Bytes, rows: Matrix, columns: Matrix) -> Bytes:
    """The pixels at whole coordinates, 0 where there are none."""
    height, width = image.shape[:2]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    found: Bytes = image[np.where(inside, rows, 0).astype(np.int64), np.where(inside, columns, 0).astype(np.int64)]
    found[~inside] = 0
    return found


def align_face(image: Bytes, points: ArrayLike, size: int = TEMPLATE_SIDE) -> Bytes:
    """One face as an upright square crop, its points at those of InsightFace's template.

    A face at twice the size or more is first averaged over whole blocks of pixels: four neighbors alone would see
    only some of its pixels.

    Args:
        image: `uint8` (H, W, 3) or (H, W).
        points: Five landmarks (eyes, nose, corners of the mouth; the image's left first), or the 68 of iBUG.
        size: Side of the crop in pixels.

    Returns:
        A `uint8` array (size, size, 3) or (size, size).

    Example:
        >>> align_face(image, detector(image)[0].landmarks).shape
        (112, 112, 3)
    """
    found = five_points(points)
    matrix = similarity(found, template(size))
    scale = float(np.linalg.norm(matrix[:, 0]))
    if scale * LARGEST_BLOCK < 1:
        raise DataError("the landmarks of a face are too far apart, or in no face's order: check where they come from")
    block = int(1 / scale)
    if block > 1:
        image, found = _averaged(image, block), (found - (block - 1) / 2) / block
        matrix = similarity(found, template(size))
    return warp(image, matrix, (size, size))


def _averaged(image: Bytes, block: int) -> Bytes:
    """The means of blocks of `block` x `block` pixels; those cut by the border are means of what there is."""
    from PIL import Image

    reduced: Bytes = np.asarray(Image.fromarray(image).reduce(block))
    return reduced
