"""What recognizers and galleries answer."""

from __future__ import annotations

from dataclasses import dataclass

from fedra.faces.recognition.face import Face
from fedra.faces.recognition.thresholds import Decision, ErrorRate


@dataclass(frozen=True)
class VerificationResult:
    """Whether two photographs show one person.

    Attributes:
        score: The cosine of the two embeddings, at most 1.
        threshold: The score from which they are one person; None if none is known.
        same: The decision, None without a threshold.
        decision: Where the threshold comes from; None if there is none, or if it was passed as a number.
        faces: The two faces that were compared.
        notes: What to know about the photographs, such as several faces.

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
    """An enrolled person, and how similar a face is.

    Attributes:
        name: The person.
        score: The cosine of the face's embedding and the person's template, at most 1.

    Example:
        >>> gallery.identify("door.jpg").matches[0]
        Match(name='Ada', score=0.71)
    """

    name: str
    score: float


@dataclass(frozen=True)
class IdentificationResult:
    """Who of the enrolled people a face is.

    Attributes:
        name: The person, None if no match reaches the threshold or there is no threshold.
        matches: The most similar people, the best first.
        threshold: The score from which the best match is accepted; None if none is known.
        accepted: Whether it is, None without a threshold.
        decision: Where the threshold comes from; None if there is none, or if it was passed as a number.
        false_accept: About how likely this gallery accepts a person who is not enrolled, where that was measured.
        face: The face.
        notes: What to know about the photograph, such as several faces.

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
    """The faces of one photograph of several, or why it could not be used.

    Attributes:
        photo: The photograph as it was given.
        faces: A result for each face that was asked for.
        problem: Why there are none; None where the photograph was usable.
    """

    photo: object
    faces: tuple[IdentificationResult, ...]
    problem: str | None = None
