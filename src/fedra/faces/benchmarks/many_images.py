"""Embeddings of very many image files: read and aligned a portion at a time, so that no benchmark fills the memory."""

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
from fedra.data.images import shortened
from fedra.errors import DataError
from fedra.faces.metrics.collapse import collapse_warning, give_directions
from fedra.faces.photos.alignment import align_face
from fedra.faces.photos.photo_files import read_photograph
from fedra.models import Embedder

PORTION = 512
"""Images that are in memory at once."""


@dataclass(frozen=True)
class EmbeddedFiles:
    """The features (n, d) of the images that could be read, their places (n,) among all, and why none differ."""

    features: Tensor
    rows: Tensor
    unreadable: int
    collapsed: str | None


def embed_files(
    embedder: Embedder, paths: Sequence[Path], title: str, console: Console | None, points: Tensor | None = None
) -> EmbeddedFiles:
    """The features of image files; with five `points` (N, 5, 2) each, their faces are aligned first.

    An image that cannot be read, or is not of the others' size, is told of and left out.
    """
    if not paths:
        raise DataError(f"{title}: there are no images to embed")
    found: list[Tensor] = []
    rows: list[int] = []
    problems: list[str] = []
    side = max(embedder.shape[1:])
    size: tuple[int, ...] | None = None

    def read(number: int) -> Bytes | DataError:
        try:
            image = read_photograph(paths[number])
            return image if points is None else align_face(image, points[number].numpy(), side)
        except DataError as error:
            return error

    with steps(console, f"embedding {title}", len(paths)) as done, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(paths), PORTION):
            numbers = range(start, min(start + PORTION, len(paths)))
            images = list(zip(numbers, pool.map(read, numbers), strict=True))
            size = size or _usual([image for _, image in images if not isinstance(image, DataError)])
            usable: list[Bytes] = []
            for number, image in images:
                if isinstance(image, DataError):
                    problems.append(str(image))
                elif image.shape != size:
                    problems.append(_odd(paths[number], image, size))
                else:
                    rows.append(number)
                    usable.append(image)
            if usable:
                found.append(embedder(torch.from_numpy(np.stack(usable)).permute(0, 3, 1, 2)))
            done(len(numbers))
    if not found:
        raise DataError(f"{title}: no image can be used, such as: {problems[0]}")
    if problems:
        told = f"{len(problems):,} of {len(paths):,} images cannot be used and are left out"
        tell(console, f"{told}: {shortened(problems)}")
    features, lost, collapsed = give_directions(torch.cat(found))
    if collapsed is not None:
        tell(console, collapse_warning(collapsed))
    elif lost:
        tell(console, f"the model gives {lost:,} of {len(features):,} images no features: they are unlike all others")
    return EmbeddedFiles(features, torch.tensor(rows), len(problems), collapsed)


def _usual(images: Sequence[Bytes]) -> tuple[int, ...] | None:
    """The commonest shape, so that an odd image which happens to come first does not rule out all others."""
    counts = Counter(image.shape for image in images)
    return counts.most_common(1)[0][0] if counts else None


def _odd(path: Path, image: Bytes, size: tuple[int, ...] | None) -> str:
    assert size is not None, "this image has one"
    shown, wanted = (f"{height} x {width}" for height, width, _ in (image.shape, size))
    return f"the image '{path}' is {shown} and others are {wanted}: align all to one size"
