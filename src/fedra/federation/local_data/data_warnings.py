"""What may be wrong with a site's images, before they spoil a federation: sideways, inverted, empty, doubled."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedra.federation.local_data.data_schema import DataSchema

ORIENTATION = 274
"""The EXIF tag that says how a camera was held; 1 is upright."""
BRIGHTNESS = 0.2
"""Difference of the mean brightness to the plan's from which a site is warned."""
CHUNK = 1024


@dataclass(frozen=True)
class ImageHeader:
    """What the header of an image file says."""

    height: int
    width: int
    turned: bool


def read_headers(paths: Sequence[Path]) -> list[ImageHeader | None]:
    """Read the headers of image files; None for those that cannot be read."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(_read_header, paths))


def _read_header(path: Path) -> ImageHeader | None:
    from PIL import Image

    try:
        with Image.open(path) as image:
            turned = image.getexif().get(ORIENTATION, 1) not in (0, 1)
            return ImageHeader(image.height, image.width, turned)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
        return None


def warn_of_headers(headers: Sequence[ImageHeader | None]) -> list[str]:
    """Warn of images that their camera calls turned: pixels are used as they are stored."""
    turned = sum(header is not None and header.turned for header in headers)
    if not turned:
        return []
    return [
        f"{turned:,} of {len(headers):,} images are stored turned, as their EXIF data say, and would be trained on "
        "sideways: turn the files"
    ]


def count_resized(headers: Sequence[ImageHeader | None], schema: DataSchema) -> int:
    """Return the number of images whose size is not the plan's."""
    return sum(header is not None and (header.height, header.width) != schema.size for header in headers)


def warn_of_pixels(inputs: Tensor, schema: DataSchema) -> list[str]:
    """Warn of images of one color, and of a mean brightness far from the plan's."""
    if inputs.dtype != torch.uint8 or not len(inputs):
        return []
    found = []
    pixels = [chunk.flatten(1) for chunk in torch.split(inputs, CHUNK)]
    empty = sum(int((chunk.amax(1) == chunk.amin(1)).sum()) for chunk in pixels)
    if empty:
        found.append(f"{empty:,} of {len(inputs):,} images have one color alone: are they empty?")
    if schema.mean is not None:
        mean = measure_brightness(inputs)
        planned = sum(schema.mean) / len(schema.mean)
        if abs(mean - planned) > BRIGHTNESS:
            found.append(
                f"mean brightness is {mean:.2f} and the plan's {planned:.2f}: are images inverted or scaled wrongly?"
            )
    return found


def measure_brightness(inputs: Tensor) -> float:
    """Return the mean of all pixels on a scale of 0 to 1."""
    total = sum(float(chunk.sum(dtype=torch.float64)) for chunk in torch.split(inputs, CHUNK))
    return total / (255 * inputs.numel())


def find_doubles(train: Tensor, test: Tensor) -> Tensor:
    """Return which test images are also training images, to the pixel."""
    known = {_digest(image) for image in train}
    return torch.tensor([_digest(image) in known for image in test], dtype=torch.bool)


def _digest(image: Tensor) -> bytes:
    return hashlib.blake2b(image.contiguous().numpy().tobytes(), digest_size=16).digest()
