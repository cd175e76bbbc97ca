"""MegaFace feature files: one OpenCV matrix per image.

A file has four little-endian int32 (rows = length of the feature, columns = 1, bytes per number = 4, OpenCV's type of
float32 = 5), then the feature as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedra.errors import DataError
from fedra.faces.metrics.search import Done, ignore_progress
from fedra.file_reading import SMALL, read_file
from fedra.writing import write_atomically

HEADER_BYTES = 16
SHAPE = (1, 4, 5)


def write_feature(path: Path | str, feature: Tensor) -> None:
    """Write one feature to a MegaFace feature file.

    Args:
        path: The file; its folder is created if needed.
        feature: The feature (d,), finite.

    Returns:
        Nothing.

    Example:
        >>> write_feature("features/a.png_mine.bin", torch.randn(512))
    """
    path = Path(path)
    if feature.dim() != 1 or not len(feature):
        raise DataError(f"the feature for '{path}' must be a vector (d,), got a tensor of shape {tuple(feature.shape)}")
    values = feature.detach().cpu().numpy().astype("<f4")
    if not np.isfinite(values).all():
        raise DataError(
            f"the feature for '{path}' must be finite, got NaN or infinity: check the network and the image"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    header = np.array([len(values), *SHAPE], dtype="<i4")
    write_atomically(path, header.tobytes() + values.tobytes(), private=True)


def read_feature(path: Path | str) -> Tensor:
    """Read one feature from a MegaFace feature file.

    Args:
        path: The file.

    Returns:
        The feature (d,), float32.

    Example:
        >>> read_feature("features/a.png_mine.bin").shape
        torch.Size([512])
    """
    path = Path(path)
    try:
        data = read_file(path, SMALL)
    except OSError as error:
        raise DataError(f"the feature file '{path}' cannot be read ({error.strerror}): check the path") from None
    header = tuple(np.frombuffer(data[:HEADER_BYTES], dtype="<i4").tolist()) if len(data) > HEADER_BYTES else ()
    if header[1:] != SHAPE or len(data) != HEADER_BYTES + 4 * header[0]:
        raise DataError(f"'{path}' is not a complete MegaFace feature file ({len(data)} bytes): write it again")
    values = np.frombuffer(data, dtype="<f4", offset=HEADER_BYTES).astype(np.float32)
    if not np.isfinite(values).all():
        raise DataError(f"the feature file '{path}' must be finite, got NaN or infinity: write it again")
    return torch.from_numpy(values)


def read_features(paths: Sequence[Path], *, done: Done = ignore_progress) -> Tensor:
    """Read many MegaFace feature files.

    Args:
        paths: The files.
        done: Called with 1 after each file.

    Returns:
        The features (N, d), float32.

    Example:
        >>> read_features(sorted(Path("features").glob("*.bin"))).shape
        torch.Size([100, 512])
    """
    if not paths:
        raise DataError("paths must name at least one feature file, got none")
    first = read_feature(paths[0])
    table = torch.empty(len(paths), len(first))
    for row, path in enumerate(paths):
        feature = read_feature(path)
        if len(feature) != len(first):
            raise DataError(
                f"the feature in '{path}' must have length {len(first)} like '{paths[0]}', got {len(feature)}: use "
                "features of one network"
            )
        table[row] = feature
        done(1)
    return table
