"""Collect and embed the photos of people to enroll."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from torch import Tensor

from fedra.console import steps
from fedra.errors import ConfigError, DataError
from fedra.faces.photos.any_photo import Photo
from fedra.faces.photos.photo_files import PHOTO_SUFFIXES, list_photos
from fedra.faces.recognition.recognizer import FaceRecognizer


@dataclass(frozen=True)
class PeoplePhotos:
    """Photos by person, and the reason for each file or folder that was skipped."""

    photographs: Mapping[str, Sequence[Photo]]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class EmbeddedPeople:
    """Embeddings (n, d) by person, the reason for each skipped photo, and notes on unreliable ones."""

    features: dict[str, Tensor]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Enrollment:
    """Result of an enrollment.

    Attributes:
        people: Number of photos used for each person who was enrolled.
        existing: People who were already enrolled and were left unchanged.
        problems: One sentence for each photo, folder or person that was skipped.
        notes: One sentence for each photo to check, such as one with several faces.

    Example:
        >>> gallery.enroll("Ada", ["ada1.jpg", "ada2.jpg"]).people
        {'Ada': 2}
    """

    people: dict[str, int]
    existing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def clean_name(name: str) -> str:
    """Normalize a person's name: composed Unicode characters, no surrounding spaces."""
    clean = unicodedata.normalize("NFC", name).strip()
    if not clean or any(unicodedata.category(letter) == "Cc" for letter in clean):
        raise ConfigError(f"a person's name must be one non-empty line, got {name!r}")
    return clean


def list_people_photos(folder: Path | str) -> PeoplePhotos:
    """List the people of a folder that has one subfolder of photos per person.

    Args:
        folder: Folder with one subfolder per person; its name is the person's name.

    Returns:
        The photos by person, and the reason for each file or folder that was skipped.

    Example:
        >>> list_people_photos("staff").photographs.keys()
        dict_keys(['Ada', 'Grace'])
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"the folder '{folder}' does not exist: give a folder with one subfolder of photos per person")
    photographs: dict[str, Sequence[Photo]] = {}
    problems: list[str] = []
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name[0] != ".":
            name = clean_name(entry.name)
            if name in photographs:
                problems.append(f"'{entry}' is skipped, because another folder has the same name: rename one of them")
            elif found := list_photos(entry):
                photographs[name] = found
            else:
                problems.append(f"'{name}' is skipped, because the folder '{entry}' contains no photos")
        elif entry.suffix.lower() in PHOTO_SUFFIXES:
            problems.append(f"'{entry}' is skipped, because it is not in a person's folder: move it into one")
    if not photographs:
        raise DataError(
            f"'{folder}' must have one subfolder of photos per person, got none: create them, or name the person whose "
            "photos these are"
        )
    return PeoplePhotos(photographs, tuple(problems))


def embed_people(
    recognizer: FaceRecognizer, people: Mapping[str, Sequence[Photo]], console: Console | None = None
) -> EmbeddedPeople:
    """Embed the photos of all people who have a usable one."""
    owners = [name for name, photos in people.items() for _ in photos]
    all_photos = [photo for photos in people.values() for photo in photos]
    with steps(console, "embedding photos", len(all_photos)) as done:
        found = recognizer.embed_usable(all_photos, done)
    problems = list(found.problems.values())
    rows: dict[str, list[int]] = {name: [] for name in people}
    for row, photo in enumerate(found.rows):
        rows[owners[photo]].append(row)
    features = {}
    for name, photos in people.items():
        if rows[name]:
            features[name] = found.features[rows[name]]
        else:
            problems.append(f"'{name}' is skipped, because none of the {len(photos)} photos is usable")
    notes = tuple(note for notes in found.notes.values() for note in notes)
    return EmbeddedPeople(features, tuple(problems), notes)
