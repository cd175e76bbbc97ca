"""Changes of a gallery's file: one at a time, in one step, with nothing left of those that were killed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedra.errors import ConfigError
from fedra.faces.recognition.enrollment import clean_name
from fedra.faces.recognition.gallery_file import Existing, GalleryContent, names_in
from fedra.locking import locked
from fedra.writing import leftovers, write_atomically

PATIENCE = 60.0
"""Seconds that a change waits for another one, which takes far less than one."""
Content = TypeVar("Content")


@dataclass(frozen=True)
class Removal:
    """What became of a removal.

    Attributes:
        left: How many people are still enrolled.
        elsewhere: A sentence for each other file that is known to hold the person still.
    """

    left: int
    elsewhere: tuple[str, ...] = ()


def remove_person(path: Path | str, name: str) -> Removal:
    """Remove a person from a gallery without opening its model.

    Args:
        path: The gallery's file.
        name: The person.

    Returns:
        How many are left, and which other files are known to hold the person still.

    Example:
        >>> remove_person("staff.gallery", "Ada").left
        7
    """
    path, who = Path(path), clean_name(name)
    GalleryContent.read(path)  # whatever is not a gallery is refused before anything is made beside it
    with changing(path) as file:
        people = GalleryContent.read(file).without(who)
        links = replace_file(file, people)
    return Removal(len(people), (*links, *_other_galleries(file, who)))


@contextmanager
def changing(path: Path) -> Iterator[Path]:
    """The file behind a gallery's path; while the block reads, changes and writes it, all other changes wait.

    Temporary files that a killed change left, with names and templates in them, are removed first.
    """
    file = Path(os.path.realpath(path))
    if file.is_dir():
        raise ConfigError(f"'{path}' is a folder: give a file for the gallery")
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = file.with_name(f".{file.name}.lock")
    busy = (
        f"another program has been changing the gallery '{path}' for {PATIENCE:.0f} s (it holds '{lock}'): end it, "
        "then try again"
    )
    with locked(lock, busy, PATIENCE):
        for leftover in leftovers(file):
            leftover.unlink(missing_ok=True)
        yield file


def replace_file(file: Path, content: GalleryContent) -> tuple[str, ...]:
    """Put a gallery in place in one step, and say what becomes of other hard links."""
    links = file.stat().st_nlink if file.exists() else 1
    write_atomically(file, content.pack(), private=True)
    if links == 1:
        return ()
    return (
        f"'{file}' had {links - 1} other hard link{'s' if links > 2 else ''}, which keep the gallery as it was before: "
        "share a gallery by symbolic links",
    )


def _other_galleries(file: Path, name: str) -> tuple[str, ...]:
    """Other galleries in the same folder that hold the person, such as backups."""
    others = sorted(entry for entry in file.parent.iterdir() if entry.is_file() and entry != file)
    return tuple(f"'{other}' still holds '{name}'" for other in others if name in names_in(other))


def split_existing(
    people: Mapping[str, Content], known: GalleryContent, existing: Existing
) -> tuple[dict[str, Content], list[str]]:
    """People to enroll, and the names of those who are enrolled already and must not be again."""
    there = set(known.names) & people.keys() if existing == "refuse" else set()
    return {name: content for name, content in people.items() if name not in there}, sorted(there)
