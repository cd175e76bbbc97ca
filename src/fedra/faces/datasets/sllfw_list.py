"""Read the list of SLLFW: pairs of LFW's photos whose impostors look alike, one photo to a line.

Deng et al., "Fine-grained face verification: FGLFW database, baselines, and human-DCNN partnership", Pattern
Recognition 66, 2017. Lines 2 i and 2 i + 1 are a pair; of every fold the genuine pairs come first, then the impostors.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedra.errors import DataError
from fedra.faces.datasets.named_pair import NamedPair, Photo

PHOTO = re.compile(r"(?P<name>[^/]+)/(?P=name)_(?P<number>\d{1,18})\.\w+")
FOLDS = 10


def is_photo_line(words: list[str]) -> bool:
    """Return whether the words of a list's first line are one photo, as in SLLFW's list."""
    return len(words) == 1 and "/" in words[0]


def parse_photo_pairs(path: Path, lines: list[tuple[int, list[str]]]) -> tuple[NamedPair, ...]:
    """Return the pairs of a list with one photo to a line: ten folds, each half genuine and half impostors."""
    if len(lines) % (4 * FOLDS):
        raise DataError(
            f"{path} must have {FOLDS} folds of as many genuine as impostor pairs, two lines to a pair, got "
            f"{len(lines)} lines: download it again"
        )
    photos = [_parse_photo(path, number, words) for number, words in lines]
    each = len(lines) // (2 * FOLDS)
    pairs = []
    for index in range(len(photos) // 2):
        first, second = photos[2 * index], photos[2 * index + 1]
        genuine = index % each < each // 2
        if (first[0] == second[0]) != genuine or first == second:
            wanted = "two images of one person" if genuine else "images of two people"
            raise DataError(f"{path}, line {lines[2 * index][0]}: a pair must be {wanted}, got {first} and {second}")
        pairs.append(NamedPair(first, second, index // each))
    return tuple(pairs)


def _parse_photo(path: Path, number: int, words: list[str]) -> Photo:
    found = PHOTO.fullmatch(words[0]) if len(words) == 1 else None
    if found is None:
        shown = " ".join(words)[:60]
        raise DataError(f"{path}, line {number}: must be a photo such as Ann/Ann_0001.jpg, got '{shown}'")
    return found["name"], int(found["number"])
