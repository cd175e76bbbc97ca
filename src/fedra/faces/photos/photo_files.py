"""Photographs as people have them: upright, in color, whatever the camera or program wrote."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedra.data.decoding import Bytes
from fedra.data.images import SUFFIXES
from fedra.errors import DataError

PHOTO_SUFFIXES = (*SUFFIXES, ".heic", ".heif", ".avif")
"""Files that are taken for photographs; phones write HEIC, which is read where pillow-heif is installed."""

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from PIL.ImageFile import ImageFile

LARGEST = 300_000_000
"""Pixels of the largest photograph that is read: a small file may unfold to more than the memory holds."""
_OPENING = Lock()
"""Held while Pillow's limit, of which a process has one for all its threads, is ours."""


def read_photograph(path: Path | str) -> Bytes:
    """The photograph in a file.

    Args:
        path: An image file of any format that Pillow reads; HEIC needs the package pillow-heif.

    Returns:
        A `uint8` array (H, W, 3) in RGB, turned as its EXIF orientation says; what is transparent is white.

    Example:
        >>> read_photograph("group.jpg").shape
        (1080, 1920, 3)
    """
    from PIL import Image, UnidentifiedImageError

    _register_heic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images and of odd notes of cameras
            with _opened(Path(path)) as image:
                pixels = to_rgb(image)
    except Image.DecompressionBombError:
        raise DataError(f"the photograph '{path}' has more than {LARGEST:,} pixels: make it smaller") from None
    except Exception as error:  # a damaged file fails in any way
        reason = _unknown(Path(path)) if isinstance(error, UnidentifiedImageError) else _reason(error)
        raise DataError(f"the photograph '{path}' cannot be read ({reason}): check the file") from None
    return pixels


def to_rgb(image: Picture) -> Bytes:
    """A PIL image as `uint8` (H, W, 3), upright."""
    from PIL import ImageOps

    pixels: Bytes = np.array(_in_color(ImageOps.exif_transpose(image)))
    return pixels


def photographs_in(folder: Path | str) -> list[Path]:
    """All image files under a folder, at any depth, in the order of names; hidden ones are left out.

    Args:
        folder: The folder to look through.

    Returns:
        Their paths. HEIC and AVIF files are among them, whether or not this machine can read them.

    Example:
        >>> photographs_in("staff/Ada")
        [PosixPath('staff/Ada/1.jpg'), PosixPath('staff/Ada/2.heic')]
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"there is no folder '{folder}': give a folder of photographs")
    found = (path for path in folder.rglob("*") if path.suffix.lower() in PHOTO_SUFFIXES and path.is_file())
    return sorted(path for path in found if not any(part[0] == "." for part in path.relative_to(folder).parts))


def _register_heic() -> None:
    if find_spec("pillow_heif") is not None:
        from pillow_heif import register_heif_opener

        register_heif_opener()


def _unknown(path: Path) -> str:
    if path.suffix.lower() in (".heic", ".heif") and find_spec("pillow_heif") is None:
        return "HEIC needs pillow-heif: pip install pillow-heif"
    return "it is no image"


def _opened(path: Path) -> ImageFile:
    """The file's header, read under our own limit of pixels; Pillow's refuses what phones make today."""
    from PIL import Image

    with _OPENING:
        limit = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = LARGEST // 2  # Pillow refuses from twice as many
        try:
            return Image.open(path)
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _in_color(image: Picture) -> Picture:
    from PIL import Image

    if image.mode[0] in "IF":
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        white = Image.new("RGBA", seen.size, "white")
        return Image.alpha_composite(white, seen).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: NDArray[Any]) -> Bytes:
    """Brightness of more than 8 bits: 65535 is white, or 1.0 where numbers are not whole."""
    white = 65535 if values.dtype.kind in "iu" else 1.0
    return np.clip(np.nan_to_num(values / white) * 255 + 0.5, 0, 255).astype(np.uint8)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
