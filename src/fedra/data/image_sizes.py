"""How large image files are, and what is said where they had to be cut and resized to fit a network."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

UNALIGNED = "unaligned"
"""Under this name a data set's notes say that its faces may not be aligned."""


def image_sizes(sources: Sequence[Path | bytes]) -> Tensor:
    """(N, 2): height and width of every image, from its header alone; 0 where it cannot be read."""
    from PIL import Image

    sizes = torch.zeros(len(sources), 2, dtype=torch.int64)
    for number, source in enumerate(sources):
        try:
            with Image.open(source if isinstance(source, Path) else io.BytesIO(source)) as image:
                sizes[number] = torch.tensor([image.height, image.width])
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
    return sizes


def cut_note(sizes: Tensor, size: tuple[int, int]) -> str | None:
    """The sentence on face images that were cut to their middle square and resized; None where none had to be."""
    other = [(int(height), int(width)) for height, width in sizes.tolist() if (height, width) not in ((0, 0), size)]
    if not other:
        return None
    (height, width), _ = Counter(other).most_common(1)[0]
    return (
        f"{len(other):,} of {len(sizes):,} images are not {size[0]}x{size[1]} (most of them {height}x{width}) and were "
        "cut to their middle square and resized: align photographs first with `fedra faces align`"
    )
