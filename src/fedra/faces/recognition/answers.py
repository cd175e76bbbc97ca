"""Result types of recognizers and galleries."""

from __future__ import annotations

from dataclasses import dataclass

from fedra.faces.recognition.face import Face
from fedra.faces.recognition.thresholds import Decision, ErrorRate


@dataclass(frozen=True)
class VerificationResult:
    """Result of comparing two photos.

    Attributes:
        score: Similarity (cosine) of the two embeddings, at most 1.
        threshold: Score at or above which the photos are accepted as the same person; None if there is none.
        same: Whether the photos were accepted as the same person; None without a threshold.
        decision: The calibration behind the threshold; None if there is none or the threshold was passed as a number.
        faces: The two faces that were compared.
        notes: Possible problems with the photos, such as several faces.

    Example:
        >>> recognizer.verify("a.jpg", "b.jpg").same
        True
    """

    score: float
    threshold: float | None
    same: bool | None
    decision: Decision | None
    faces: tuple[Face, Face]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Match:
    """An enrolled person and the similarity of a face to that person's template.

    Attributes:
        name: Name of the person.
        score: Similarity (cosine) of the face's embedding and the person's template, at most 1.

    Example:
        >>> gallery.identify("door.jpg").matches[0]
        Match(name='Ada', score=0.71)
    """

    name: str
    score: float


@dataclass(frozen=True)
class IdentificationResult:
    """Result of searching a gallery for a face.

    Attributes:
        name: Name of the accepted person; None if no match reaches the threshold or there is no threshold.
        matches: The most similar people, best first.
        threshold: Score at or above which the best match is accepted; None if there is none.
        accepted: Whether the best match was accepted; None without a threshold.
        decision: The calibration behind the threshold; None if there is none or the threshold was passed as a number.
        false_accept: Estimated probability that this gallery accepts a person who is not enrolled; None if it was not
            measured.
        face: The face that was searched for.
        notes: Possible problems with the photo, such as several faces.

    Example:
        >>> gallery.identify("door.jpg").name
        'Ada'
    """

    name: str | None
    matches: tuple[Match, ...]
    threshold: float | None
    accepted: bool | None
    decision: Decision | None
    false_accept: ErrorRate | None
    face: Face
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PhotoIdentification:
    """Results for the faces of one photo, or the reason why the photo could not be used.

    Attributes:
        photo: The photo as it was passed in.
        faces: One result per requested face.
        problem: Why the photo could not be used; None if it could.

    Example:
        >>> for result in gallery.identify_each(["a.jpg", "b.jpg"]):
        ...     print(result.photo, result.problem or [face.name for face in result.faces])
    """

    photo: object
    faces: tuple[IdentificationResult, ...]
    problem: str | None = None
