"""Read photo files of any format as upright RGB images."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedra.data.decoding import Bytes
from fedra.data.images import SUFFIXES, describe_odd_file
from fedra.errors import DataError

PHOTO_SUFFIXES = (*SUFFIXES, ".heic", ".heif", ".avif")
"""Suffixes of photo files; HEIC, which phones write, is read if pillow-heif is installed."""

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from PIL.ImageFile import ImageFile

LARGEST_FILE = 2**29
"""Maximum size of a photo's file in bytes."""
LARGEST = 200_000_000
"""Maximum number of pixels of a photo, as many as phones have; a small file may decompress to more than memory."""
_OPENING = Lock()
"""Held while Pillow's pixel limit, which is global to the process, is changed."""


def read_photo_file(path: Path | str) -> Bytes:
    """Read a photo from a file.

    Args:
        path: An image file of any format that Pillow reads; HEIC needs the package pillow-heif.

    Returns:
        A `uint8` array (H, W, 3) in RGB, rotated by its EXIF orientation, with transparent pixels in white.

    Example:
        >>> read_photo_file("group.jpg").shape
        (1080, 1920, 3)
    """
    from PIL import Image, UnidentifiedImageError

    _register_heic()
    check_photo_file(Path(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images and of invalid EXIF data
            with open_image(Path(path)) as image:
                pixels = to_rgb(image)
    except Image.DecompressionBombError:
        raise DataError(f"the photo '{path}' must have at most {LARGEST:,} pixels: resize it") from None
    except Exception as error:  # a damaged file can raise anything
        reason = _unidentified_reason(Path(path)) if isinstance(error, UnidentifiedImageError) else _reason(error)
        raise DataError(f"the photo '{path}' cannot be read ({reason}): check the file") from None
    return pixels


def check_photo_file(path: Path) -> None:
    """Raise unless a path is a file of a size that a photo can have; a pipe or a device may never end."""
    reason = describe_odd_file(path)
    if reason is None and path.stat().st_size > LARGEST_FILE:
        reason = f"it has more than {LARGEST_FILE // 2**20} MB"
    if reason is not None:
        raise DataError(f"the photo '{path}' cannot be read ({reason}): check the file")


def to_rgb(image: Picture) -> Bytes:
    """Convert a PIL image to `uint8` (H, W, 3), rotated by its EXIF orientation."""
    from PIL import ImageOps

    pixels: Bytes = np.array(_convert_to_rgb(ImageOps.exif_transpose(image)))
    return pixels


def list_photos(folder: Path | str) -> list[Path]:
    """List all image files under a folder, at any depth, except hidden ones.

    Args:
        folder: The folder to search.

    Returns:
        The paths, sorted. HEIC and AVIF files are included even if this machine cannot read them, and so are folders,
        dangling links and devices with the name of an image, which are reported when they are read.

    Example:
        >>> list_photos("staff/Ada")
        [PosixPath('staff/Ada/1.jpg'), PosixPath('staff/Ada/2.heic')]
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"the folder '{folder}' does not exist: give a folder of photos")
    found = (path for path in folder.rglob("*") if path.suffix.lower() in PHOTO_SUFFIXES)
    return sorted(path for path in found if not any(part[0] == "." for part in path.relative_to(folder).parts))


def _register_heic() -> None:
    if find_spec("pillow_heif") is not None:
        from pillow_heif import register_heif_opener

        register_heif_opener()


def _unidentified_reason(path: Path) -> str:
    if path.suffix.lower() in (".heic", ".heif") and find_spec("pillow_heif") is None:
        return "HEIC needs pillow-heif: pip install pillow-heif"
    return "not an image"


def open_image(path: Path) -> ImageFile:
    """Open an image with our own pixel limit; Pillow's default rejects photos of current phones."""
    from PIL import Image

    with _OPENING:
        limit = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = LARGEST // 2  # Pillow raises above twice its limit
        try:
            return Image.open(path)
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _convert_to_rgb(image: Picture) -> Picture:
    from PIL import Image

    if image.mode[0] in "IF":
        return Image.fromarray(_to_eight_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        with_alpha = image.convert("RGBA")
        white = Image.new("RGBA", with_alpha.size, "white")
        return Image.alpha_composite(white, with_alpha).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_eight_bits(values: NDArray[Any]) -> Bytes:
    """Convert brightness to 8 bits: white is 65535 for integers and 1.0 for floats."""
    white = 65535 if values.dtype.kind in "iu" else 1.0
    return np.clip(np.nan_to_num(values / white) * 255 + 0.5, 0, 255).astype(np.uint8)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
