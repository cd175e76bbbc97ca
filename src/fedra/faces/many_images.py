"""Embeddings of very many image files: read and aligned a portion at a time, so that no benchmark fills the memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from fedra.data.decoding import Bytes
from fedra.data.images import shortened
from fedra.errors import DataError
from fedra.experiment.face_protocols import directed
from fedra.experiment.progress import steps
from fedra.experiment.run import tell
from fedra.faces.alignment import align_face
from fedra.faces.photographs import read_photograph
from fedra.models import Embedder

PORTION = 512
"""Images that are in memory at once."""


@dataclass(frozen=True)
class EmbeddedFiles:
    """The features (n, d) of the images that could be read, and their places (n,) among all."""

    features: Tensor
    rows: Tensor
    unreadable: int


def embed_files(
    embedder: Embedder, paths: Sequence[Path], title: str, console: Console | None, points: Tensor | None = None
) -> EmbeddedFiles:
    """The features of image files; with five `points` (N, 5, 2) each, their faces are aligned first.

    An image that cannot be read is told of and left out.
    """
    if not paths:
        raise DataError(f"{title}: there are no images to embed")
    found: list[Tensor] = []
    rows: list[int] = []
    problems: list[str] = []
    side = max(embedder.shape[1:])

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
            problems += [str(image) for _, image in images if isinstance(image, DataError)]
            readable = [(number, image) for number, image in images if not isinstance(image, DataError)]
            if readable:
                rows += [number for number, _ in readable]
                found.append(embedder(_stacked([image for _, image in readable], paths[start])))
            done(len(numbers))
    if not found:
        raise DataError(f"{title}: no image can be read, such as: {problems[0]}")
    if problems:
        told = f"{len(problems):,} of {len(paths):,} images cannot be read and are left out"
        tell(console, f"{told}: {shortened(problems)}")
    features, lost = directed(torch.cat(found))
    if lost:
        tell(console, f"the model gives {lost:,} of {len(features):,} images no features: they are unlike all others")
    return EmbeddedFiles(features, torch.tensor(rows), len(problems))


def _stacked(images: Sequence[Bytes], first: Path) -> Tensor:
    """uint8 (N, 3, H, W)."""
    sizes = {image.shape[:2] for image in images}
    if len(sizes) > 1:
        one, two = sorted(sizes)[:2]
        raise DataError(
            f"the images after '{first}' differ in size ({one[0]} x {one[1]} and {two[0]} x {two[1]}): align them all "
            "to one size"
        )
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
