"""Sizes of image files, and the note on images that were cropped and resized for a network."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

UNALIGNED = "unaligned"
LEFT_OUT = "left out"
"""The note on images that were skipped, one line each."""
"""Key of a data set's note that its faces may not be aligned."""


def image_sizes(sources: Sequence[Path | bytes]) -> Tensor:
    """Read height and width of every image from its header, as (N, 2); 0 if an image cannot be read."""
    from PIL import Image

    sizes = torch.zeros(len(sources), 2, dtype=torch.int64)
    for number, source in enumerate(sources):
        try:
            with Image.open(source if isinstance(source, Path) else io.BytesIO(source)) as image:
                sizes[number] = torch.tensor([image.height, image.width])
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
    return sizes


def crop_note(sizes: Tensor, size: tuple[int, int]) -> str | None:
    """Return the note on face images that were cropped to their central square and resized, or None without any."""
    other = [(int(height), int(width)) for height, width in sizes.tolist() if (height, width) not in ((0, 0), size)]
    if not other:
        return None
    (height, width), _ = Counter(other).most_common(1)[0]
    return (
        f"{len(other):,} of {len(sizes):,} images are not {size[0]}x{size[1]} (most are {height}x{width}) and were "
        "cropped to their central square and resized: align photos first with `fedra faces align`"
    )
