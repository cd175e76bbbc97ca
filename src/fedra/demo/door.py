"""What a gallery answers for the people at a door, and whether the answers are correct."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from fedra.faces import Gallery


@dataclass(frozen=True)
class Answer:
    """The gallery's answer for one person at the door.

    Attributes:
        person: The true name of the person.
        enrolled: Whether the person is enrolled in the gallery.
        name: The name in the gallery's answer, or None for no match.
        score: The similarity of the most similar enrolled person.
        threshold: The similarity from which that person is a match.
    """

    person: str
    enrolled: bool
    name: str | None
    score: float
    threshold: float

    @property
    def is_correct(self) -> bool:
        """Whether an enrolled person is identified, and any other person is rejected."""
        return self.name == (self.person if self.enrolled else None)


def identify_photo(gallery: Gallery, photo: Path) -> Answer:
    """Ask the gallery who is in a photo; the name of the photo's folder is the true name."""
    found, person = gallery.identify(photo, top=1), photo.parent.name
    assert found.threshold is not None  # the demo has just calibrated the model
    return Answer(person, person in gallery, found.name, found.matches[0].score, found.threshold)


def answer_table(answers: tuple[Answer, ...]) -> Table:
    """Return a table with one row per person at the door."""
    table = Table(header_style="bold")
    for heading in ("at the door", "enrolled", "similarity", "threshold", "answer", ""):
        table.add_column(heading, justify="right" if heading in ("similarity", "threshold") else "left")
    for answer in answers:
        table.add_row(
            answer.person,
            "yes" if answer.enrolled else "no",
            f"{answer.score:.2f}",
            f"{answer.threshold:.2f}",
            answer.name or "no match",
            "correct" if answer.is_correct else "WRONG",
        )
    return table
