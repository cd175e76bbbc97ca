"""The lists of Labeled Faces in the Wild: people.txt and pairs.txt, in folds or as one development set.

Huang et al., Labeled Faces in the Wild, UMass Amherst 07-49, 2007. Their folds divide the people, and every pair lies
inside its own fold.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedra.errors import DataError

Photo = tuple[str, int]
"""A person's name and the number of the image, from 1."""
DIGITS = 18
"""Of the longest number that is read: Python refuses those of thousands of digits."""


@dataclass(frozen=True)
class NamedPair:
    """Two photos by name, and the fold of the pair, from 0."""

    first: Photo
    second: Photo
    fold: int

    @property
    def same(self) -> bool:
        return self.first[0] == self.second[0]


def read_people(path: Path | str) -> tuple[tuple[str, ...], ...]:
    """The people of every fold, by name; a development list is one fold."""
    path = Path(path)
    lines = _lines(path)
    divided = len(lines) > 1 and len(lines[1][1]) == 1
    folds = _whole(path, *lines[0]) if divided else 1
    place, found = (1 if divided else 0), []
    for fold in range(folds):
        if place >= len(lines):
            raise DataError(f"{path} ends before fold {fold} of {folds}: fetch it again")
        count = _whole(path, *lines[place])
        people = lines[place + 1 : place + 1 + count]
        if len(people) < count:
            raise DataError(f"{path} promises {count} people in fold {fold} and has {len(people)}: fetch it again")
        found.append(tuple(_person(path, *line) for line in people))
        place += 1 + count
    _check_end(path, lines, place)
    _check_distinct(path, found)
    return tuple(found)


def read_pair_list(path: Path | str) -> tuple[NamedPair, ...]:
    """All pairs in the list's order: of each fold the genuine ones, then the impostors."""
    path = Path(path)
    lines = _lines(path)
    number, head = lines[0]
    if len(head) > 2:
        raise DataError(
            f"{path}, line {number}: '{' '.join(head)}' stands where the numbers of folds and of pairs are wanted: "
            "check the list"
        )
    folds, each = (_whole(path, number, [word]) for word in (head if len(head) == 2 else ["1", *head]))
    _check_end(path, lines, 1 + folds * 2 * each)
    if len(lines) < 1 + folds * 2 * each:
        raise DataError(
            f"{path} promises {folds} x {2 * each} pairs and has {len(lines) - 1}: fetch the whole list again"
        )
    return tuple(
        _pair(path, number, words, fold=place // (2 * each), genuine=place % (2 * each) < each)
        for place, (number, words) in enumerate(lines[1:])
    )


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The words of every line that has some, with its number."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"there is no {path}: put the list of LFW there") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is no text in UTF-8: fetch it again") from None
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), start=1)]
    found = [(number, words) for number, words in lines if words]
    if not found:
        raise DataError(f"{path} is empty: fetch it again")
    return found


def _whole(path: Path, number: int, words: list[str]) -> int:
    if len(words) != 1 or not words[0].isdecimal() or len(words[0]) > DIGITS:
        shown = " ".join(words)[:60]
        raise DataError(f"{path}, line {number}: '{shown}' stands where a number is wanted: check the list")
    return int(words[0])


def _person(path: Path, number: int, words: list[str]) -> str:
    if len(words) != 2 or not words[1].isdecimal():
        raise DataError(f"{path}, line {number}: '{' '.join(words)}' is no name and number of images: check the list")
    return words[0]


def _pair(path: Path, number: int, words: list[str], *, fold: int, genuine: bool) -> NamedPair:
    if genuine and len(words) == 3:
        name, one, other = words
        photos = ((name, one), (name, other))
    elif not genuine and len(words) == 4:
        photos = ((words[0], words[1]), (words[2], words[3]))
    else:
        wanted = "a name and two numbers" if genuine else "two names, each with a number"
        raise DataError(f"{path}, line {number}: '{' '.join(words)}' stands where {wanted} are wanted: check the list")
    first, second = ((name, _whole(path, number, [which])) for name, which in photos)
    if (first[0] == second[0]) != genuine or first == second:
        raise DataError(f"{path}, line {number}: '{' '.join(words)}' pairs one person as two, or an image with itself")
    return NamedPair(first, second, fold)


def _check_end(path: Path, lines: list[tuple[int, list[str]]], end: int) -> None:
    if len(lines) > end:
        number, words = lines[end]
        raise DataError(f"{path}, line {number}: '{' '.join(words)}' comes after the promised end: check the list")


def _check_distinct(path: Path, folds: list[tuple[str, ...]]) -> None:
    seen: dict[str, int] = {}
    for fold, people in enumerate(folds):
        for name in people:
            if name in seen:
                raise DataError(f"{path} has '{name}' in fold {seen[name]} and again in fold {fold}: check the list")
            seen[name] = fold
