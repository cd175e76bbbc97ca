"""CelebA's list of identities: a line for each image, its name and the number of the person.

Liu et al., Deep Learning Face Attributes in the Wild, ICCV 2015.
"""

from __future__ import annotations

from pathlib import Path

from fedra.data.images import Listing
from fedra.errors import DataError

DIGITS = 18
"""Of the longest identity that is read: Python refuses numbers of thousands of digits."""


def read_identities(path: Path | str) -> dict[str, int]:
    """The identity of every image by its file name."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"there is no {path}: put identity_CelebA.txt, which its authors hand out, there") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is no text in UTF-8: fetch it again") from None
    found: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not words[1].isdecimal() or len(words[1]) > DIGITS:
            raise DataError(f"{path}, line {number}: '{line.strip()[:60]}' is no image and identity: fetch it again")
        if words[0] in found:
            raise DataError(f"{path}, line {number}: the image {words[0]} is listed twice: fetch it again")
        found[words[0]] = int(words[1])
    if not found:
        raise DataError(f"{path} is empty: fetch it again")
    return found


def list_celeba(identities: Path, images: Path) -> Listing:
    """The listed images as one listing; people are called by their number, with zeros before it."""
    if not images.is_dir():
        raise DataError(f"there is no folder {images}: unpack img_align_celeba.zip there")
    listed = read_identities(identities)
    there = {entry.name for entry in images.iterdir()}
    if missing := [name for name in listed if name not in there]:
        raise DataError(
            f"{len(missing)} images of {identities} are not in {images}, such as {missing[0]}: unpack all of them"
        )
    digits = len(str(max(listed.values())))
    paths = tuple(images / name for name in listed)
    return Listing(paths, tuple(f"{person:0{digits}d}" for person in listed.values()), ("",) * len(paths))
