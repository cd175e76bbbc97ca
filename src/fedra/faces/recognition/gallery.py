"""A gallery of enrolled people in a file that several programs may read and change at once.

The file is replaced by a rename under a lock, so a kill leaves the old gallery or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.faces.photos.any_photo import Photo, listed_photos
from fedra.faces.recognition.answers import IdentificationResult, Match, PhotoIdentification
from fedra.faces.recognition.enrollment import Enrollment, PeoplePhotos, clean_name, embed_people, people_in
from fedra.faces.recognition.face import Face
from fedra.faces.recognition.gallery_changes import Removal, changing, remove_person, replace_file, split_existing
from fedra.faces.recognition.gallery_file import (
    Engine,
    Existing,
    GalleryContent,
    already,
)
from fedra.faces.recognition.gallery_model import current_content, metadata_of, recognizer_of
from fedra.faces.recognition.model_source import Size
from fedra.faces.recognition.name_faces import name_faces
from fedra.faces.recognition.recognizer import FaceRecognizer, warn


class Gallery:
    """People enrolled by templates of their faces; it never holds photographs.

    Open one with `Gallery.open`. Several programs may use one file: each change waits for the others, and a reader
    notices changes at its next call.

    Example:
        >>> gallery = Gallery.open("staff.gallery", recognizer)
        >>> gallery.enroll("Ada", ["ada1.jpg", frame])
        >>> gallery.identify("door.jpg").name
        'Ada'
    """

    def __init__(self, path: Path | str, recognizer: FaceRecognizer) -> None:
        self.path, self.recognizer = Path(path), recognizer
        self._read: tuple[object, GalleryContent] | None = None

    @classmethod
    def open(
        cls,
        path: Path | str,
        recognizer: FaceRecognizer | None = None,
        *,
        model: Path | str | None = None,
        detector: Path | str | None = None,
        network: str | None = None,
        input: Size | None = None,
        device: str = "cpu",
        create: bool = True,
    ) -> Gallery:
        """Open a gallery; its file is created at the first enrollment.

        Args:
            path: The file.
            recognizer: The model and detector that make embeddings; without one, the gallery's own are opened from
                where they were at its first enrollment, or for a new gallery those that the other arguments name.
            model: Without a recognizer: where the model is now.
            detector: Without a recognizer: "yunet" or a path, in the place of the gallery's own.
            network: Without a recognizer: of a weight file, as in `FaceRecognizer`.
            input: Without a recognizer: of a new gallery's weight file, as in `FaceRecognizer`.
            device: Without a recognizer: where the model runs.
            create: Allow a gallery that does not exist yet.

        Returns:
            The gallery. A recognizer with another model than the gallery's is refused.

        Example:
            >>> Gallery.open("staff.gallery").names
            ('Ada', 'Grace')
        """
        there = Path(path).exists()
        if not there and not create:
            raise DataError(f"there is no gallery '{path}': enroll somebody first")
        if recognizer is None and there:
            recognizer = recognizer_of(GalleryContent.read(Path(path)), model, detector, network, device)
        elif recognizer is None:
            if model is None:
                raise ConfigError(f"there is no gallery '{path}' yet: name the model that makes its templates")
            recognizer = FaceRecognizer(model, detector, network=network, input=input, device=device)
        gallery = cls(path, recognizer)
        gallery._content()
        return gallery

    @property
    def names(self) -> tuple[str, ...]:
        """Who is enrolled, in the order of enrollment."""
        return self._content().names

    @property
    def photo_counts(self) -> dict[str, int]:
        """How many photographs each person was enrolled with."""
        return dict(self._content().counts)

    def __len__(self) -> int:
        return len(self._content())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and clean_name(name) in self._content().names

    def __repr__(self) -> str:
        return f"Gallery({str(self.path)!r}, {len(self)} people)"

    def enroll(
        self,
        name: str,
        photos: Photo | Sequence[Photo],
        *,
        existing: Existing = "refuse",
        console: Console | None = None,
    ) -> Enrollment:
        """Enroll a person.

        Args:
            name: The person.
            photos: A photograph, a list of them, or the path of a folder of them.
            existing: If the person is enrolled already: "refuse", "add" the photographs, or "replace" the person.
            console: Where to show progress, if anywhere.

        Returns:
            With how many photographs, and a sentence for each that could not be used. None usable is an error.

        Example:
            >>> gallery.enroll("Ada", ["ada1.jpg", frame]).people
            {'Ada': 2}
        """
        who = clean_name(name)
        if existing == "refuse" and who in self._content().names:
            raise ConfigError(already(who))
        found = self._enroll(PeoplePhotos({who: listed_photos(photos)}), existing, console)
        warn(found.notes)
        if who in found.existing:  # by another program, while the photographs were embedded
            raise ConfigError(already(who))
        return found

    def enroll_folder(
        self, folder: Path | str, *, existing: Existing = "refuse", console: Console | None = None
    ) -> Enrollment:
        """Enroll the people of a folder with a folder of photographs for each.

        Args:
            folder: Holds a folder for each person, named like the person.
            existing: What becomes of people who are enrolled already; "refuse" leaves them as they are.
            console: Where to show progress, if anywhere.

        Returns:
            Who was enrolled and who was before, and a sentence for each photograph or folder that was left out.
            Nothing is written before all photographs are embedded.

        Example:
            >>> gallery.enroll_folder("staff").people
            {'Ada': 3, 'Grace': 2}
        """
        found = self._enroll(people_in(folder), existing, console)
        warn(found.notes)
        return found

    def identify(self, photo: Photo, top: int = 5, *, threshold: float | None = None) -> IdentificationResult:
        """Who of the enrolled people a photograph shows.

        Args:
            photo: A photograph of one person; of several faces the main one is taken, with a `FaceWarning`.
            top: How many matches to give.
            threshold: The score from which a match is accepted; the calibrated one unless given.

        Returns:
            The accepted name or None, and the best matches.

        Example:
            >>> gallery.identify(frame, top=2).matches
            (Match(name='Ada', score=0.71), Match(name='Grace', score=0.18))
        """
        found = self._results([self.recognizer.main_face(photo)], top, threshold)[0]
        warn(found.notes)
        return found

    def identify_all(
        self, photo: Photo, top: int = 5, *, threshold: float | None = None
    ) -> tuple[IdentificationResult, ...]:
        """Who each face of a photograph is.

        Args:
            photo: A photograph of any number of people; the recognizer must have a detector.
            top: How many matches to give for each face.
            threshold: The score from which a match is accepted; the calibrated one unless given.

        Returns:
            A result for each face, the surest detection first; none if no face was found.

        Example:
            >>> [found.name for found in gallery.identify_all("group.jpg")]
            ['Ada', None, 'Grace']
        """
        return self._results(self.recognizer.detect(photo), top, threshold)

    def identify_each(
        self, photos: Sequence[Photo], top: int = 5, *, all_faces: bool = False, threshold: float | None = None
    ) -> Iterator[PhotoIdentification]:
        """Who is on each of several photographs, one after the other.

        Args:
            photos: The photographs, or paths of folders of them.
            top: How many matches to give for each face.
            all_faces: Name all faces of a photograph, not the main one alone.
            threshold: The score from which a match is accepted; the calibrated one unless given.

        Returns:
            For each photograph its faces, or why it cannot be used; the others go on.

        Example:
            >>> for answer in gallery.identify_each(["a.jpg", "b.jpg"]):
            ...     print(answer.photo, [face.name for face in answer.faces], answer.problem)
        """
        if not len(self):
            raise DataError(f"the gallery '{self.path}' is empty: enroll somebody first")
        for photo in (each for some in photos for each in listed_photos(some)):
            try:
                faces = self.recognizer.detect(photo) if all_faces else [self.recognizer.main_face(photo)]
                yield PhotoIdentification(photo, self._results(faces, top, threshold))
            except DataError as error:
                yield PhotoIdentification(photo, (), str(error))

    def search(self, embeddings: Tensor, top: int = 5, engine: Engine = "exact") -> list[list[Match]]:
        """The most similar people of embeddings.

        Args:
            embeddings: Of the gallery's model, (N, d).
            top: How many matches to give for each.
            engine: "exact" compares with everybody by matrix products. "faiss" builds a graph at the first search,
                which pays off for thousands of searches among very many people, and may miss somebody.

        Returns:
            For each embedding its matches, the best first.

        Example:
            >>> gallery.search(recognizer.embed([frame]), top=1)[0][0].name
            'Ada'
        """
        return self._content().search(embeddings, top, engine)

    def remove(self, name: str) -> Removal:
        """Remove a person.

        Args:
            name: The person.

        Returns:
            How many are left, and which other files are known to hold the person still: galleries in the same folder
            and hard links.

        Example:
            >>> gallery.remove("Ada").left
            1
        """
        return remove_person(self.path, name)

    def _content(self) -> GalleryContent:
        """What the file holds now; it is read again when it was replaced."""
        try:
            seen = os.stat(self.path)
        except FileNotFoundError:
            return GalleryContent.empty(metadata_of(self.recognizer))
        state = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
        if self._read is None or self._read[0] != state:
            content = GalleryContent.read(self.path)
            content.check_model(self.recognizer.fingerprint)
            self._read = state, content
        return self._read[1]

    def _enroll(self, people: PeoplePhotos, existing: Existing, console: Console | None) -> Enrollment:
        wanted, there = split_existing(people.photographs, self._content(), existing)
        found = embed_people(self.recognizer, wanted, console)
        problems = (*people.problems, *found.problems)
        if not found.features and not there:
            raise DataError(f"no one was enrolled: {'; '.join(problems[:5])}")
        features, links = found.features, tuple[str, ...]()
        if features:
            with changing(self.path) as file:
                # Read again: others may have been enrolled meanwhile.
                now = current_content(file, self.recognizer)
                features, lately = split_existing(features, now, existing)
                links = replace_file(file, now.with_people(features, existing))
            there += lately
        counts = {name: len(rows) for name, rows in features.items()}
        return Enrollment(counts, tuple(there), problems, (*found.notes, *links))

    def _results(self, faces: Sequence[Face], top: int, threshold: float | None) -> tuple[IdentificationResult, ...]:
        decision = self.recognizer.decision if threshold is None else None
        return name_faces(self._content(), faces, top, decision, threshold)
