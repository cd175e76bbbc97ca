"""Changes of a gallery file: one at a time under a lock, atomic, without leftovers of killed programs."""

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
from fedra.locking import hold_lock
from fedra.writing import find_leftovers, write_atomically

LOCK_TIMEOUT = 60.0
"""Seconds that a change waits for another one; a change takes far less than a second."""
Content = TypeVar("Content")


@dataclass(frozen=True)
class Removal:
    """Result of a removal.

    Attributes:
        left: Number of people who are still enrolled.
        elsewhere: One sentence for each other file that is known to still contain the person.

    Example:
        >>> remove_person("staff.gallery", "Ada").elsewhere
        ("'backup.gallery' still contains 'Ada'",)
    """

    left: int
    elsewhere: tuple[str, ...] = ()


def remove_person(path: Path | str, name: str) -> Removal:
    """Remove a person from a gallery without opening its model.

    Args:
        path: The gallery file.
        name: Name of the person.

    Returns:
        The number of people left, and the other files that are known to still contain the person.

    Example:
        >>> remove_person("staff.gallery", "Ada").left
        7
    """
    path, person = Path(path), clean_name(name)
    GalleryContent.read(path)  # raises for other files before a lock file is created next to them
    with lock_gallery(path) as file:
        people = GalleryContent.read(file).without(person)
        links = replace_file(file, people)
    return Removal(len(people), (*links, *_other_galleries(file, person)))


@contextmanager
def lock_gallery(path: Path) -> Iterator[Path]:
    """Yield the real path of a gallery file while other programs cannot change it.

    Removes temporary files of killed programs first, because they contain names and templates.
    """
    file = Path(os.path.realpath(path))
    if file.is_dir():
        raise ConfigError(f"the gallery must be a file, got the folder '{path}'")
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = file.with_name(f".{file.name}.lock")
    busy = (
        f"another program has held the lock '{lock}' of the gallery '{path}' for {LOCK_TIMEOUT:.0f} s: end that "
        "program, then try again"
    )
    with hold_lock(lock, busy, LOCK_TIMEOUT):
        for leftover in find_leftovers(file.parent, [file.name]):
            leftover.unlink(missing_ok=True)
        yield file


def replace_file(file: Path, content: GalleryContent) -> tuple[str, ...]:
    """Replace a gallery file atomically, and return a note if it had other hard links."""
    links = file.stat().st_nlink if file.exists() else 1
    write_atomically(file, content.pack(file.parent), private=True)
    if links == 1:
        return ()
    others = "1 other hard link, which still has" if links == 2 else f"{links - 1} other hard links, which still have"
    return (f"'{file}' had {others} the old content: use symbolic links to share a gallery",)


def _other_galleries(file: Path, name: str) -> tuple[str, ...]:
    """Report other galleries in the same folder that contain the person, such as backups."""
    others = sorted(entry for entry in file.parent.iterdir() if entry.is_file() and entry != file)
    return tuple(f"'{other}' still contains '{name}'" for other in others if name in names_in(other))


def split_existing(
    people: Mapping[str, Content], known: GalleryContent, existing: Existing
) -> tuple[dict[str, Content], list[str]]:
    """Split into the people to enroll and the names of those who are already enrolled and are left unchanged."""
    enrolled = set(known.names) & people.keys() if existing == "refuse" else set()
    return {name: content for name, content in people.items() if name not in enrolled}, sorted(enrolled)
