"""Read the lists of Labeled Faces in the Wild: people.txt and pairs.txt, in folds or as one development set.

Huang et al., Labeled Faces in the Wild, UMass Amherst 07-49, 2007. The folds partition the people, and both photos of a
pair are in the same fold.
"""

from __future__ import annotations

from pathlib import Path

from fedra.errors import DataError
from fedra.faces.datasets.named_pair import NamedPair
from fedra.faces.datasets.sllfw_list import is_photo_line, parse_photo_pairs
from fedra.file_reading import read_text_file

DIGITS = 18
"""Maximum number of digits of a number: Python rejects integers with thousands of digits."""


def read_people(path: Path | str) -> tuple[tuple[str, ...], ...]:
    """Read people.txt or a development list.

    Args:
        path: The file.

    Returns:
        The names of the people in each fold; a development list is one fold.

    Example:
        >>> len(read_people("lfw/people.txt"))
        10
    """
    path = Path(path)
    lines = _lines(path)
    has_folds = len(lines) > 1 and len(lines[1][1]) == 1
    folds = _parse_integer(path, *lines[0]) if has_folds else 1
    position, found = (1 if has_folds else 0), []
    for fold in range(folds):
        if position >= len(lines):
            raise DataError(f"{path} ends before fold {fold} of {folds}: download it again")
        count = _parse_integer(path, *lines[position])
        people = lines[position + 1 : position + 1 + count]
        if len(people) < count:
            raise DataError(f"{path} must have {count} people in fold {fold}, got {len(people)}: download it again")
        found.append(tuple(_parse_person(path, *line) for line in people))
        position += 1 + count
    _check_end(path, lines, position)
    _check_distinct(path, found)
    return tuple(found)


def read_pair_list(path: Path | str) -> tuple[NamedPair, ...]:
    """Read pairs.txt, a development list, or SLLFW's list (pair_SLLFW.txt, one photo to a line).

    Args:
        path: The file.

    Returns:
        The pairs in the order of the list: of each fold the genuine ones, then the impostors.

    Example:
        >>> len(read_pair_list("lfw/pairs.txt"))
        6000
    """
    path = Path(path)
    lines = _lines(path)
    number, head = lines[0]
    if is_photo_line(head):
        return parse_photo_pairs(path, lines)
    if len(head) > 2:
        raise DataError(
            f"{path}, line {number}: the first line must be the numbers of folds and pairs, got '{' '.join(head)}'"
        )
    folds, each = (_parse_integer(path, number, [word]) for word in (head if len(head) == 2 else ["1", *head]))
    _check_end(path, lines, 1 + folds * 2 * each)
    if len(lines) < 1 + folds * 2 * each:
        raise DataError(
            f"{path} must have {folds} x {2 * each} pairs, got {len(lines) - 1}: download the complete list again"
        )
    return tuple(
        _parse_pair(path, number, words, fold=index // (2 * each), genuine=index % (2 * each) < each)
        for index, (number, words) in enumerate(lines[1:])
    )


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """Return the words of each non-empty line with its line number."""
    try:
        text = read_text_file(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: put the list of LFW there") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} must be UTF-8 text: download it again") from None
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), start=1)]
    found = [(number, words) for number, words in lines if words]
    if not found:
        raise DataError(f"{path} is empty: download it again")
    return found


def _parse_integer(path: Path, number: int, words: list[str]) -> int:
    if len(words) != 1 or not words[0].isdecimal() or len(words[0]) > DIGITS:
        shown = " ".join(words)[:60]
        raise DataError(f"{path}, line {number}: must be a number, got '{shown}': check the list")
    return int(words[0])


def _parse_person(path: Path, number: int, words: list[str]) -> str:
    if len(words) != 2 or not words[1].isdecimal():
        raise DataError(f"{path}, line {number}: must be a name and a number of images, got '{' '.join(words)}'")
    return words[0]


def _parse_pair(path: Path, number: int, words: list[str], *, fold: int, genuine: bool) -> NamedPair:
    if genuine and len(words) == 3:
        name, one, other = words
        photos = ((name, one), (name, other))
    elif not genuine and len(words) == 4:
        photos = ((words[0], words[1]), (words[2], words[3]))
    else:
        expected = "a name and two numbers" if genuine else "two names, each with a number"
        raise DataError(f"{path}, line {number}: must be {expected}, got '{' '.join(words)}': check the list")
    first, second = ((name, _parse_integer(path, number, [which])) for name, which in photos)
    if (first[0] == second[0]) != genuine or first == second:
        raise DataError(
            f"{path}, line {number}: a pair must be two images, an impostor pair two people, got '{' '.join(words)}'"
        )
    return NamedPair(first, second, fold)


def _check_end(path: Path, lines: list[tuple[int, list[str]]], end: int) -> None:
    if len(lines) > end:
        number, words = lines[end]
        raise DataError(f"{path}, line {number}: the list must end before this line, got '{' '.join(words)}'")


def _check_distinct(path: Path, folds: list[tuple[str, ...]]) -> None:
    seen: dict[str, int] = {}
    for fold, people in enumerate(folds):
        for name in people:
            if name in seen:
                raise DataError(f"{path} must list each person once, but '{name}' is in folds {seen[name]} and {fold}")
            seen[name] = fold
