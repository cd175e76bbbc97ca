"""People and their photographs, from folders or by name, and what became of them."""

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
from fedra.faces.photos.photo_files import PHOTO_SUFFIXES, photographs_in
from fedra.faces.recognition.recognizer import FaceRecognizer


@dataclass(frozen=True)
class PeoplePhotos:
    """Photographs by person, and one sentence for whatever is not a person's."""

    photographs: Mapping[str, Sequence[Photo]]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class EmbeddedPeople:
    """Embeddings (n, d) by person, and sentences about photographs that could not be used, or only with a doubt."""

    features: dict[str, Tensor]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Enrollment:
    """What became of an enrollment.

    Attributes:
        people: Who was enrolled, with how many photographs.
        existing: Who was enrolled before, and was left as they were.
        problems: A sentence for each photograph, folder or person that was left out.
        notes: A sentence for each thing to look at, such as a photograph with several faces.

    Example:
        >>> gallery.enroll("Ada", ["ada1.jpg", "ada2.jpg"]).people
        {'Ada': 2}
    """

    people: dict[str, int]
    existing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def clean_name(name: str) -> str:
    """A person's name, the same however it was typed: composed characters, no spaces around it."""
    clean = unicodedata.normalize("NFC", name).strip()
    if not clean or any(unicodedata.category(letter) == "Cc" for letter in clean):
        raise ConfigError(f"a person's name must be a word or more on one line, got {name!r}")
    return clean


def people_in(folder: Path | str) -> PeoplePhotos:
    """The people of a folder with a folder for each.

    Args:
        folder: Holds a folder of photographs for each person, named like the person.

    Returns:
        The photographs by person, and a sentence for whatever was left out.

    Example:
        >>> people_in("staff").photographs.keys()
        dict_keys(['Ada', 'Grace'])
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"there is no folder '{folder}': give a folder with a folder of photographs for each person")
    photographs: dict[str, Sequence[Photo]] = {}
    problems: list[str] = []
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name[0] != ".":
            name = clean_name(entry.name)
            if name in photographs:
                problems.append(f"'{entry}' has the name of another folder, so it is left out: rename one of them")
            elif found := photographs_in(entry):
                photographs[name] = found
            else:
                problems.append(f"the folder '{entry}' holds no photographs, so '{name}' is left out")
        elif entry.suffix.lower() in PHOTO_SUFFIXES:
            problems.append(f"'{entry}' is not in a person's folder, so it is left out: move it into one")
    if not photographs:
        raise DataError(
            f"'{folder}' has no folders with photographs: make one for each person, or name the person whose "
            "photographs these are"
        )
    return PeoplePhotos(photographs, tuple(problems))


def embed_people(
    recognizer: FaceRecognizer, people: Mapping[str, Sequence[Photo]], console: Console | None = None
) -> EmbeddedPeople:
    """The embeddings of every person of whom a photograph can be used."""
    owners = [name for name, photos in people.items() for _ in photos]
    every = [photo for photos in people.values() for photo in photos]
    with steps(console, "embedding photographs", len(every)) as done:
        found = recognizer.embed_usable(every, done)
    problems = list(found.problems.values())
    places: dict[str, list[int]] = {name: [] for name in people}
    for place, row in enumerate(found.rows):
        places[owners[row]].append(place)
    features = {}
    for name, photos in people.items():
        if rows := places[name]:
            features[name] = found.features[rows]
        else:
            problems.append(f"'{name}' is left out: none of the {len(photos)} photographs can be used")
    notes = tuple(note for some in found.notes.values() for note in some)
    return EmbeddedPeople(features, tuple(problems), notes)
