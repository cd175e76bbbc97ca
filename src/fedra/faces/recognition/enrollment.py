"""PeoplePhotos from folders of photographs into a gallery."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from torch import Tensor

from fedra.console import steps
from fedra.data.images import SUFFIXES
from fedra.errors import ConfigError, DataError
from fedra.faces.photos.photo_files import photographs_in
from fedra.faces.recognition.gallery import Again, Gallery, GalleryMetadata, already, changing
from fedra.faces.recognition.recognizer import FaceRecognizer, ModelSource

Content = TypeVar("Content")


@dataclass(frozen=True)
class PeoplePhotos:
    """Photographs by person, and one sentence for whatever is no person."""

    photographs: dict[str, list[Path]]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Enrolment:
    """Who was enrolled, with how many photographs, and one sentence for each problem."""

    people: dict[str, int]
    problems: tuple[str, ...]


def clean_name(name: str) -> str:
    """A person's name, the same however it was typed: composed characters, no spaces around it."""
    clean = unicodedata.normalize("NFC", name).strip()
    if not clean or any(unicodedata.category(letter) == "Cc" for letter in clean):
        raise ConfigError(f"{name!r} cannot be a person's name: give a word or more on one line")
    return clean


def people_in(folder: Path) -> PeoplePhotos:
    """The people of a folder with a folder for each."""
    if not folder.is_dir():
        raise DataError(f"there is no folder '{folder}': give a folder with a folder of photographs for each person")
    photographs: dict[str, list[Path]] = {}
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
        elif entry.suffix.lower() in SUFFIXES:
            problems.append(f"'{entry}' lies in no person's folder, so it is left out: put it into one")
    if not photographs:
        raise DataError(
            f"'{folder}' has no folders with photographs: give each person one, or name the person with --name"
        )
    return PeoplePhotos(photographs, tuple(problems))


def person_at(path: Path, name: str) -> PeoplePhotos:
    """One person, whose photograph or folder of photographs is at `path`."""
    found = photographs_in(path) if path.is_dir() else [path]
    if not found:
        raise DataError(f"the folder '{path}' holds no photographs: put some in")
    return PeoplePhotos({clean_name(name): found}, ())


def embed_people(
    recogniser: FaceRecognizer, people: dict[str, list[Path]], console: Console | None = None
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The embeddings (n, d) of every person of whom a photograph can be used, and a sentence for each that cannot."""
    every = [path for paths in people.values() for path in paths]
    with steps(console, "embedding photographs", len(every)) as done:
        found = recogniser.embed(every, done)
    problems = list(found.problems.values())
    places = {path: row for row, path in enumerate(found.paths)}
    features = {}
    for name, paths in people.items():
        if rows := [places[path] for path in paths if path in places]:
            features[name] = found.features[rows]
        else:
            problems.append(f"'{name}' is left out: none of the {len(paths)} photographs can be used")
    return features, tuple(problems)


def enrol(
    gallery: Path,
    recogniser: FaceRecognizer,
    source: ModelSource,
    people: PeoplePhotos,
    *,
    detector: str | None = None,
    again: Again = "refuse",
    console: Console | None = None,
) -> Enrolment:
    """Enrol people into the gallery at that path, which is made if it is not there.

    Who is enrolled already is left out with a sentence, unless `again` is "add" or "replace". Nothing is written
    before all photographs are embedded.
    """
    about = GalleryMetadata(
        model=source,
        fingerprint=recogniser.fingerprint,
        detector=detector,
        detector_fingerprint=recogniser.detector.fingerprint if recogniser.detector else None,
    )
    wanted, there = _apart(people.photographs, _current(gallery, about), again)
    features, unusable = embed_people(recogniser, wanted, console)
    if features:
        with changing(gallery):
            # Read again: others may have been enrolled meanwhile.
            now = _current(gallery, about)
            features, lately = _apart(features, now, again)
            now.with_people(features, again).write(gallery)
        there += lately
    problems = (*people.problems, *map(already, there), *unusable)
    return Enrolment({name: len(rows) for name, rows in features.items()}, problems)


def forget(gallery: Path, name: str) -> int:
    """Take a person out of the gallery at that path; how many are left."""
    Gallery.read(gallery)  # what is no gallery is refused before anything is made beside it
    with changing(gallery):
        people = Gallery.read(gallery).without(clean_name(name))
        people.write(gallery)
    return len(people)


def _apart(people: dict[str, Content], known: Gallery, again: Again) -> tuple[dict[str, Content], list[str]]:
    """PeoplePhotos to enrol, and the names of those who are enrolled already and must not be again."""
    there = set(known.names) & people.keys() if again == "refuse" else set()
    return {name: content for name, content in people.items() if name not in there}, sorted(there)


def _current(path: Path, about: GalleryMetadata) -> Gallery:
    if not path.exists():
        return Gallery.empty(about)
    known = Gallery.read(path)
    known.check_model(about.fingerprint)
    return known
