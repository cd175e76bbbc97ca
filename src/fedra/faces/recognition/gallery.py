"""A gallery of enrolled people in a file that several programs may read and change at the same time.

The file is replaced by a rename under a lock, so a killed program leaves either the old gallery or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from rich.console import Console
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.faces.photos.any_photo import Photo, listed_photos
from fedra.faces.recognition.answers import IdentificationResult, Match, PhotoIdentification
from fedra.faces.recognition.enrollment import Enrollment, PeoplePhotos, clean_name, embed_people, list_people_photos
from fedra.faces.recognition.face import Face, embed_together
from fedra.faces.recognition.gallery_changes import Removal, lock_gallery, remove_person, replace_file, split_existing
from fedra.faces.recognition.gallery_file import (
    Engine,
    Existing,
    GalleryContent,
    already_enrolled,
)
from fedra.faces.recognition.gallery_model import current_content, metadata_of, recognizer_of
from fedra.faces.recognition.model_source import Size
from fedra.faces.recognition.name_faces import name_faces
from fedra.faces.recognition.recognizer import FaceRecognizer, warn

LARGEST_GROUP = 16
"""Number of photos that are identified together: larger batches are hardly faster, and the answers come later."""


class Gallery:
    """A file of enrolled people, each represented by a face template; it never contains photos.

    Open one with `Gallery.open`. Several programs may use the same file: changes are made one at a time, and readers
    see them at their next call.

    Args:
        path: The gallery file.
        recognizer: The model and detector that compute embeddings.

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
        trust: bool = False,
    ) -> Gallery:
        """Open a gallery; its file is created at the first enrollment.

        Args:
            path: The gallery file.
            recognizer: The model and detector that compute embeddings. Without one, they are opened from the paths
                stored in the gallery or, for a new gallery, from the arguments below.
            model: Without a recognizer: path of the model, if it differs from the stored one.
            detector: Without a recognizer: "yunet" or a path, in place of the stored detector.
            network: Without a recognizer: network of a weight file, as in `FaceRecognizer`.
            input: Without a recognizer: input size of a new gallery's weight file, as in `FaceRecognizer`.
            device: Without a recognizer: device of the model.
            create: Whether the gallery may be new.
            trust: Without a recognizer: import the run's model if it is your own code (`module:function`).

        Returns:
            The gallery. A recognizer whose model is not the gallery's raises `ConfigError`.

        Example:
            >>> Gallery.open("staff.gallery").names
            ('Ada', 'Grace')
        """
        exists = Path(path).exists()
        if not exists and not create:
            raise DataError(f"the gallery '{path}' does not exist: enroll a person first")
        if recognizer is None and exists:
            recognizer = recognizer_of(GalleryContent.read(Path(path)), model, detector, network, device, trust=trust)
        elif recognizer is None:
            if model is None:
                raise ConfigError(f"model must be set for the new gallery '{path}': give a run's folder or weight file")
            recognizer = FaceRecognizer(model, detector, network=network, input=input, device=device, trust=trust)
        gallery = cls(path, recognizer)
        gallery._content()
        return gallery

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the enrolled people, in order of enrollment."""
        return self._content().names

    @property
    def photo_counts(self) -> dict[str, int]:
        """Number of photos that each person was enrolled with."""
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
            name: Name of the person.
            photos: A photo, a list of photos, or the path of a folder of photos.
            existing: If the person is already enrolled: "refuse" raises, "add" adds the photos, "replace" replaces the
                person.
            console: Console that shows progress; default: none.

        Returns:
            The number of photos used, and the reason for each photo that could not be used. `DataError` if no photo
            is usable.

        Example:
            >>> gallery.enroll("Ada", ["ada1.jpg", frame]).people
            {'Ada': 2}
        """
        person = clean_name(name)
        if existing == "refuse" and person in self._content().names:
            raise ConfigError(already_enrolled(person))
        found = self._enroll(PeoplePhotos({person: listed_photos(photos)}), existing, console)
        warn(found.notes)
        if person in found.existing:  # enrolled by another program while the photos were embedded
            raise ConfigError(already_enrolled(person))
        return found

    def enroll_folder(
        self, folder: Path | str, *, existing: Existing = "refuse", console: Console | None = None
    ) -> Enrollment:
        """Enroll all people of a folder that has one subfolder of photos per person.

        Args:
            folder: Folder with one subfolder per person; its name is the person's name.
            existing: For people who are already enrolled: "refuse" leaves them unchanged, "add" adds the photos,
                "replace" replaces the person.
            console: Console that shows progress; default: none.

        Returns:
            The people who were enrolled, those who already were, and the reason for each photo or folder that was
            skipped. The gallery is written after all photos are embedded.

        Example:
            >>> gallery.enroll_folder("staff").people
            {'Ada': 3, 'Grace': 2}
        """
        found = self._enroll(list_people_photos(folder), existing, console)
        warn(found.notes)
        return found

    def identify(self, photo: Photo, top: int = 5, *, threshold: float | None = None) -> IdentificationResult:
        """Identify the main face of a photo among the enrolled people.

        Args:
            photo: A photo of one person; if it shows several faces, the main one is used, with a `FaceWarning`.
            top: Number of matches to return.
            threshold: Score at or above which the best match is accepted; default: the calibrated one.

        Returns:
            The accepted name, or None for no match, and the best matches.

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
        """Identify every face of a photo among the enrolled people.

        Args:
            photo: A photo of any number of people; the recognizer must have a detector.
            top: Number of matches to return for each face.
            threshold: Score at or above which the best match is accepted; default: the calibrated one.

        Returns:
            One result per face, in descending order of the detector's confidence; empty if there is no face.

        Example:
            >>> [found.name for found in gallery.identify_all("group.jpg")]
            ['Ada', None, 'Grace']
        """
        return self._results(self.recognizer.detect(photo), top, threshold)

    def identify_each(
        self, photos: Sequence[Photo], top: int = 5, *, all_faces: bool = False, threshold: float | None = None
    ) -> Iterator[PhotoIdentification]:
        """Identify the people in several photos, which are embedded in groups.

        Args:
            photos: Photos, or paths of folders of photos.
            top: Number of matches to return for each face.
            all_faces: Identify all faces of a photo instead of the main one.
            threshold: Score at or above which the best match is accepted; default: the calibrated one.

        Returns:
            An iterator with one entry per photo, in order: its results, or the reason why it cannot be used. The first
            photo is answered at once, the others in groups that grow to 16 photos.

        Example:
            >>> for answer in gallery.identify_each(["a.jpg", "b.jpg"]):
            ...     print(answer.photo, [face.name for face in answer.faces], answer.problem)
        """
        if not len(self):
            raise DataError(f"the gallery '{self.path}' is empty: enroll a person first")
        group: list[tuple[Photo, list[Face] | DataError]] = []
        size = 1
        for photo in (photo for entry in photos for photo in listed_photos(entry)):
            try:
                group.append(
                    (photo, self.recognizer.detect(photo) if all_faces else [self.recognizer.main_face(photo)])
                )
            except DataError as error:
                group.append((photo, error))
            if len(group) == size:
                yield from self._answers(group, top, threshold)
                group, size = [], min(2 * size, LARGEST_GROUP)
        yield from self._answers(group, top, threshold)

    def search(self, embeddings: Tensor, top: int = 5, engine: Engine = "exact") -> list[list[Match]]:
        """Find the most similar people for embeddings.

        Args:
            embeddings: Embeddings (N, d) of the gallery's model.
            top: Number of matches to return for each embedding.
            engine: "exact" compares with all people by matrix products. "faiss" builds a graph index at the first
                search; it is faster for thousands of searches in a very large gallery, and approximate: it may miss a
                match.

        Returns:
            For each embedding its matches, best first.

        Example:
            >>> gallery.search(recognizer.embed([frame]), top=1)[0][0].name
            'Ada'
        """
        return self._content().search(embeddings, top, engine)

    def remove(self, name: str) -> Removal:
        """Remove a person.

        Args:
            name: Name of the person.

        Returns:
            The number of people left, and the other files that are known to still contain the person: galleries in the
            same folder, and hard links.

        Example:
            >>> gallery.remove("Ada").left
            1
        """
        return remove_person(self.path, name)

    def _content(self) -> GalleryContent:
        """Return the current content of the file, reading it again if it was replaced."""
        try:
            stat = os.stat(self.path)
        except FileNotFoundError:
            return GalleryContent.empty(metadata_of(self.recognizer))
        state = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if self._read is None or self._read[0] != state:
            content = GalleryContent.read(self.path)
            content.check_model(self.recognizer.fingerprint)
            self._read = state, content
        return self._read[1]

    def _enroll(self, people: PeoplePhotos, existing: Existing, console: Console | None) -> Enrollment:
        new, skipped = split_existing(people.photographs, self._content(), existing)
        found = embed_people(self.recognizer, new, console)
        problems = (*people.problems, *found.problems)
        if not found.features and not skipped:
            raise DataError(f"no person could be enrolled: {'; '.join(problems[:5])}")
        features, links = found.features, tuple[str, ...]()
        if features:
            with lock_gallery(self.path) as file:
                # Read again under the lock: another program may have enrolled people since.
                current = current_content(file, self.recognizer)
                features, skipped_now = split_existing(features, current, existing)
                links = replace_file(file, current.with_people(features, existing))
            skipped += skipped_now
        counts = {name: len(rows) for name, rows in features.items()}
        return Enrollment(counts, tuple(skipped), problems, (*found.notes, *links))

    def _answers(
        self, group: Sequence[tuple[Photo, list[Face] | DataError]], top: int, threshold: float | None
    ) -> Iterator[PhotoIdentification]:
        """Answer a group of photos; if one of them has an unusable embedding, each photo on its own."""
        found = [[] if isinstance(faces, DataError) else faces for _, faces in group]
        try:
            results = iter(self._results([face for faces in found for face in faces], top, threshold))
        except DataError as error:
            if len(group) == 1:
                yield PhotoIdentification(group[0][0], (), str(error))
            else:
                for one in group:
                    yield from self._answers([one], top, threshold)
            return
        for (photo, given), faces in zip(group, found, strict=True):
            problem = str(given) if isinstance(given, DataError) else None
            yield PhotoIdentification(photo, tuple(islice(results, len(faces))), problem)

    def _results(self, faces: Sequence[Face], top: int, threshold: float | None) -> tuple[IdentificationResult, ...]:
        decision = self.recognizer.decision if threshold is None else None
        together = embed_together(faces, self.recognizer.embed_crops)
        return name_faces(self._content(), together, top, decision, threshold)
