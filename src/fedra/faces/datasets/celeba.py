"""Read CelebA's list of identities: one line per image with its file name and identity.

Liu et al., Deep Learning Face Attributes in the Wild, ICCV 2015.
"""

from __future__ import annotations

from pathlib import Path

from fedra.data.images import Listing
from fedra.errors import DataError
from fedra.file_reading import read_text_file

DIGITS = 18
"""Maximum number of digits of an identity: Python rejects integers with thousands of digits."""


def read_identities(path: Path | str) -> dict[str, int]:
    """Read identity_CelebA.txt.

    Args:
        path: The file.

    Returns:
        The identity of each image by file name.

    Example:
        >>> read_identities("celeba/identity_CelebA.txt")["000001.jpg"]
        2880
    """
    path = Path(path)
    try:
        lines = read_text_file(path).splitlines()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: get identity_CelebA.txt from the authors of CelebA") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} must be UTF-8 text: download it again") from None
    found: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not words[1].isdecimal() or len(words[1]) > DIGITS:
            raise DataError(
                f"{path}, line {number}: a line must be an image and an identity, got '{line.strip()[:60]}': download "
                "it again"
            )
        if words[0] in found:
            raise DataError(f"{path}, line {number}: the image {words[0]} is listed twice: download it again")
        found[words[0]] = int(words[1])
    if not found:
        raise DataError(f"{path} is empty: download it again")
    return found


def list_celeba(identities: Path, images: Path) -> Listing:
    """Return the listed images; names of people are their identities with leading zeros."""
    if not images.is_dir():
        raise DataError(f"the folder {images} does not exist: unpack img_align_celeba.zip there")
    listed = read_identities(identities)
    existing = {entry.name for entry in images.iterdir()}
    if missing := [name for name in listed if name not in existing]:
        raise DataError(
            f"{images} must contain all images of {identities}, but {len(missing)} are missing, such as {missing[0]}: "
            "unpack all of them"
        )
    digits = len(str(max(listed.values())))
    paths = tuple(images / name for name in listed)
    return Listing(paths, tuple(f"{person:0{digits}d}" for person in listed.values()), ("",) * len(paths))
