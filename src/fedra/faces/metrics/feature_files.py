"""MegaFace's feature files: one OpenCV matrix for each image.

Four little-endian int32 (rows = length of the feature, columns = 1, bytes a number = 4, OpenCV's type of float32 = 5),
then the feature as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedra.errors import DataError
from fedra.faces.metrics.search import Done, ignore_progress
from fedra.writing import write_atomically

HEADER_BYTES = 16
SHAPE = (1, 4, 5)


def write_feature(path: Path | str, feature: Tensor) -> None:
    """Write one feature (d,)."""
    path = Path(path)
    if feature.dim() != 1 or not len(feature):
        raise DataError(f"a feature file holds one vector, not a tensor of shape {tuple(feature.shape)}: '{path}'")
    values = feature.detach().cpu().numpy().astype("<f4")
    if not np.isfinite(values).all():
        raise DataError(f"the feature for '{path}' holds NaN or infinity: check the network and the image behind it")
    path.parent.mkdir(parents=True, exist_ok=True)
    header = np.array([len(values), *SHAPE], dtype="<i4")
    write_atomically(path, header.tobytes() + values.tobytes(), private=True)


def read_feature(path: Path | str) -> Tensor:
    """Read one feature (d,)."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"the feature file '{path}' cannot be read ({error.strerror}): check the path") from None
    header = tuple(np.frombuffer(data[:HEADER_BYTES], dtype="<i4").tolist()) if len(data) > HEADER_BYTES else ()
    if header[1:] != SHAPE or len(data) != HEADER_BYTES + 4 * header[0]:
        raise DataError(f"'{path}' is no whole MegaFace feature file ({len(data)} bytes): write it anew")
    values = np.frombuffer(data, dtype="<f4", offset=HEADER_BYTES).astype(np.float32)
    if not np.isfinite(values).all():
        raise DataError(f"the feature file '{path}' holds NaN or infinity: write it anew")
    return torch.from_numpy(values)


def read_features(paths: Sequence[Path], *, done: Done = ignore_progress) -> Tensor:
    """Read many features as one table (N, d)."""
    if not paths:
        raise DataError("no feature files were named: give at least one")
    first = read_feature(paths[0])
    table = torch.empty(len(paths), len(first))
    for row, path in enumerate(paths):
        feature = read_feature(path)
        if len(feature) != len(first):
            raise DataError(
                f"'{path}' holds {len(feature)} numbers but '{paths[0]}' {len(first)}: take both from one network"
            )
        table[row] = feature
        done(1)
    return table
