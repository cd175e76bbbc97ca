"""Embed many image files, read and aligned in batches to bound memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from fedra.console import steps, tell
from fedra.data.decoding import Bytes
from fedra.data.images import shorten_list
from fedra.errors import DataError
from fedra.faces.metrics.collapse import collapse_warning, separate_zero_embeddings
from fedra.faces.photos.alignment import align_face
from fedra.faces.photos.photo_files import read_photo_file
from fedra.models import Embedder

BATCH = 512
"""Number of images in memory at a time."""


@dataclass(frozen=True)
class EmbeddedFiles:
    """Features (n, d) of the readable images, their indices (n,), and the reason if the features have collapsed."""

    features: Tensor
    rows: Tensor
    unreadable: int
    collapsed: str | None


def embed_files(
    embedder: Embedder, paths: Sequence[Path], title: str, console: Console | None, points: Tensor | None = None
) -> EmbeddedFiles:
    """Embed image files; with five `points` (N, 5, 2) each, the faces are aligned first.

    Images that cannot be read or differ in size from the others are reported and skipped.
    """
    if not paths:
        raise DataError(f"{title} must list at least one image, got none: check the list")
    found: list[Tensor] = []
    rows: list[int] = []
    problems: list[str] = []
    side = max(embedder.shape[1:])
    size: tuple[int, ...] | None = None

    def read(index: int) -> Bytes | DataError:
        try:
            image = read_photo_file(paths[index])
            return image if points is None else align_face(image, points[index].numpy(), side)
        except DataError as error:
            return error

    with steps(console, f"embedding {title}", len(paths)) as done, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(paths), BATCH):
            batch = range(start, min(start + BATCH, len(paths)))
            images = list(zip(batch, pool.map(read, batch), strict=True))
            size = size or _most_common_shape([image for _, image in images if not isinstance(image, DataError)])
            usable: list[Bytes] = []
            for index, image in images:
                if isinstance(image, DataError):
                    problems.append(str(image))
                elif image.shape != size:
                    problems.append(_describe_wrong_size(paths[index], image, size))
                else:
                    rows.append(index)
                    usable.append(image)
            if usable:
                found.append(embedder(torch.from_numpy(np.stack(usable)).permute(0, 3, 1, 2)))
            done(len(batch))
    if not found:
        raise DataError(f"{title} has no usable image; the first problem: {problems[0]}")
    if problems:
        tell(console, f"{len(problems):,} of {len(paths):,} images are unusable and skipped: {shorten_list(problems)}")
    features, zero, collapsed = separate_zero_embeddings(torch.cat(found))
    if collapsed is not None:
        tell(console, collapse_warning(collapsed))
    elif zero:
        tell(
            console,
            f"the embeddings of {zero:,} of {len(features):,} images are zero or not finite: these images match no "
            "other image",
        )
    return EmbeddedFiles(features, torch.tensor(rows), len(problems), collapsed)


def _most_common_shape(images: Sequence[Bytes]) -> tuple[int, ...] | None:
    """Return the most common shape; the first image may be an exception."""
    counts = Counter(image.shape for image in images)
    return counts.most_common(1)[0][0] if counts else None


def _describe_wrong_size(path: Path, image: Bytes, size: tuple[int, ...] | None) -> str:
    assert size is not None, "at least one image was read"
    actual, expected = (f"{height} x {width}" for height, width, _ in (image.shape, size))
    return f"the image '{path}' must be {expected} like the others, got {actual}: align all images to one size"
