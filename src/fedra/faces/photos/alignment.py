"""Face alignment: the least-squares similarity transform of five landmarks, and the warped image."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedra.data.decoding import Bytes
from fedra.errors import DataError
from fedra.faces.photos.landmarks import TEMPLATE_SIDE, Points, five_points, template

Matrix = NDArray[np.float64]
"""(2, 3): maps a point p to M[:, :2] p + M[:, 2]."""
LARGEST_BLOCK = 4096
"""Maximum factor of downscaling: the sums of larger blocks overflow Pillow's 32 bits."""


def similarity(source: Points, target: Points) -> Matrix:
    """Estimate the similarity transform from `source` to `target` by least squares (Umeyama, PAMI 1991).

    It consists of rotation, scale and translation, without reflection. With centered points,
    A = 1/n sum t s^T = U S V^T, D = diag(1, sign(det U det V)), R = U D V^T, c = tr(S D) / var(s):
    M = [c R | mean(t) - c R mean(s)].

    Args:
        source: Points (N, 2), x first.
        target: Points (N, 2) to map them to.

    Returns:
        A matrix M (2, 3), which maps a point p to M[:, :2] p + M[:, 2].

    Example:
        >>> similarity(face.landmarks, template(112))
    """
    source_center, target_center = source.mean(axis=0), target.mean(axis=0)
    centered = source - source_center
    spread = float((centered**2).sum(axis=1).mean())
    if spread <= 1e-12 * max(1.0, float((source**2).max())):
        raise DataError("the landmarks of a face must differ, got one point: check the detector or points file")
    left, lengths, right = np.linalg.svd((target - target_center).T @ centered / len(source))
    signs = np.array([1.0, np.sign(np.linalg.det(left) * np.linalg.det(right))])
    rotation = (left * signs) @ right * (float(lengths @ signs) / spread)
    return np.column_stack([rotation, target_center - rotation @ source_center])


def warp(image: Bytes, matrix: Matrix, size: tuple[int, int]) -> Bytes:
    """Warp an image by a matrix M: pixel q of the result is the image at M^-1 q, bilinear, 0 outside the image.

    Args:
        image: `uint8` (H, W) or (H, W, C).
        matrix: A matrix (2, 3), as returned by `similarity`.
        size: Height and width of the result.

    Returns:
        A `uint8` array of the given size.

    Example:
        >>> warp(image, similarity(face.landmarks, template(112)), (112, 112))
    """
    back = np.linalg.inv(matrix[:, :2])
    offset = -back @ matrix[:, 2]
    height, width = size
    corners = back @ np.array([[0, width - 1, 0, width - 1], [0, 0, height - 1, height - 1]]) + offset[:, None]
    limits = np.array(image.shape[1::-1])
    first = np.clip(np.floor(corners.min(axis=1)), 0, limits).astype(int)
    last = np.clip(np.floor(corners.max(axis=1)) + 2, 0, limits).astype(int)
    if (first >= last).any():
        return np.zeros((*size, *image.shape[2:]), dtype=np.uint8)
    crop = image[first[1] : last[1], first[0] : last[0]]
    scale = 2 / (last - first)  # torch's grid goes from -1 to 1, the outer edges of the pixels
    steps, start = back * scale[:, None], (offset - first + 0.5) * scale - 1
    grid = np.empty((1, height, width, 2))
    for axis in range(2):
        down = steps[axis, 1] * np.arange(height) + start[axis]
        np.add(steps[axis, 0] * np.arange(width), down[:, None], out=grid[0, ..., axis])
    return _interpolate(crop, grid).reshape(*size, *image.shape[2:])


def _interpolate(image: Bytes, grid: Matrix) -> Bytes:
    """Return (H, W, channels): the image at the points of a grid, bilinear in double precision, 0 outside."""
    import torch

    channels = image.astype(np.float64).reshape(*image.shape[:2], -1)
    with torch.inference_mode():
        values = torch.from_numpy(channels).permute(2, 0, 1)[None]
        found = torch.nn.functional.grid_sample(values, torch.from_numpy(grid), align_corners=False)
        rounded: Bytes = found[0].add_(0.5).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return rounded


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
    found = five_points(points)
    matrix = similarity(found, template(size))
    scale = float(np.linalg.norm(matrix[:, 0]))
    if scale * LARGEST_BLOCK < 1:
        raise DataError(
            "the landmarks of a face must be in the order eyes, nose, mouth and close enough to form a face: check the "
            "detector or points file"
        )
    block = int(1 / scale)
    if block > 1:
        image, found = _average_blocks(image, block), (found - (block - 1) / 2) / block
        matrix = similarity(found, template(size))
    return warp(image, matrix, (size, size))


def _average_blocks(image: Bytes, block: int) -> Bytes:
    """Return the means of blocks of `block` x `block` pixels; blocks at the border may be smaller."""
    from PIL import Image

    reduced: Bytes = np.asarray(Image.fromarray(image).reduce(block))
    return reduced
