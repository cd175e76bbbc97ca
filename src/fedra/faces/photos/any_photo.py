"""Photos given as a path, a PIL image, a NumPy array or a torch tensor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union, cast

import numpy as np
from numpy.typing import NDArray

from fedra.data.decoding import Bytes
from fedra.errors import DataError
from fedra.faces.photos.photo_files import list_photos, read_photo_file, to_rgb

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from torch import Tensor

Photo: TypeAlias = Union[str, Path, "Picture", NDArray[Any], "Tensor"]
"""A path, a PIL image, or uint8 pixels: an array (H, W, 3) in RGB or (H, W) in gray, or a tensor (also (3, H, W))."""
CHANNELS = (1, 3)
FORMS = (
    "a photo must be a path, a PIL image, a uint8 array of shape (H, W, 3) in RGB or (H, W) in gray, or a uint8 tensor "
    "of these shapes or (3, H, W)"
)


def read_photo(photo: Photo) -> Bytes:
    """Return the pixels of a photo given in any supported form.

    Args:
        photo: A path (`str` or `pathlib.Path`), a PIL image, a `uint8` array of shape (H, W, 3) in RGB or (H, W) in
            gray, or a `uint8` tensor of these shapes or (3, H, W). OpenCV returns BGR: pass `frame[..., ::-1]`.

    Returns:
        A `uint8` array (H, W, 3) in RGB, rotated by the EXIF orientation.

    Example:
        >>> read_photo(np.zeros((480, 640), dtype=np.uint8)).shape
        (480, 640, 3)
    """
    from PIL import Image

    if isinstance(photo, (str, Path)):
        return read_photo_file(photo)
    if isinstance(photo, Image.Image):
        return to_rgb(photo)
    if isinstance(photo, np.ndarray):
        return _from_array(photo)
    if hasattr(photo, "detach") and hasattr(photo, "numpy"):
        return _from_array(_channels_last(photo.detach().cpu().numpy()))
    raise DataError(f"{FORMS}, got {type(photo).__name__}")


def describe_photo(photo: object, number: int | None = None) -> str:
    """Return what messages call a photo: its path in quotes, or its index in a list."""
    if isinstance(photo, (str, Path)):
        return f"'{photo}'"
    return "the photo" if number is None else f"photo {number}"


def is_one_photo(photos: object) -> bool:
    """Return whether this is one photo, not a sequence; a 4-dimensional array or tensor is a sequence."""
    return not isinstance(photos, (list, tuple)) and getattr(photos, "ndim", 0) != 4


def listed_photos(photos: Photo | Sequence[Photo]) -> Sequence[Photo]:
    """Return a list of photos from a sequence, the path of a folder, or a single photo."""
    if not is_one_photo(photos):
        return cast("Sequence[Photo]", photos)
    if isinstance(photos, (str, Path)) and Path(photos).is_dir():
        found = list_photos(photos)
        if not found:
            raise DataError(f"the folder '{photos}' contains no photos: add some")
        return found
    return [cast("Photo", photos)]


def _from_array(pixels: NDArray[Any]) -> Bytes:
    if pixels.dtype != np.uint8:
        hint = ": multiply by 255, round and convert" if pixels.dtype.kind == "f" else ""
        raise DataError(f"{FORMS}, got an array of {pixels.dtype}{hint}")
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or pixels.shape[2] not in CHANNELS or not pixels.size:
        raise DataError(f"{FORMS}, got an array of shape {pixels.shape}")
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _channels_last(pixels: NDArray[Any]) -> NDArray[Any]:
    """Move a tensor's channels last; if the first and last dimension could both be channels, the first is used."""
    return np.moveaxis(pixels, 0, -1) if pixels.ndim == 3 and pixels.shape[0] in CHANNELS else pixels
