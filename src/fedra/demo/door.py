"""Who is at the door: what a gallery answers, and whether that is right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from fedra.faces import Gallery


@dataclass(frozen=True)
class Answer:
    """What the gallery says of a person at the door.

    Attributes:
        person: Who it is.
        enrolled: Whether the gallery should know the person.
        name: The gallery's answer, None for "not enrolled".
        score: The similarity of the most similar enrolled person.
        threshold: The similarity from which that person is named.
    """

    person: str
    enrolled: bool
    name: str | None
    score: float
    threshold: float

    @property
    def right(self) -> bool:
        """Whether an enrolled person is named and any other is not."""
        return self.name == (self.person if self.enrolled else None)


def ask(gallery: Gallery, photo: Path) -> Answer:
    """Who the gallery says that a photograph shows; the folder it lies in says who it is."""
    found, person = gallery.identify(photo, top=1), photo.parent.name
    assert found.threshold is not None  # calibrated a moment ago
    return Answer(person, person in gallery, found.name, found.matches[0].score, found.threshold)


def door_table(answers: tuple[Answer, ...]) -> Table:
    """A row for each person at the door."""
    table = Table(header_style="bold")
    for heading in ("at the door", "enrolled", "score", "threshold", "answer", ""):
        table.add_column(heading, justify="right" if heading in ("score", "threshold") else "left")
    for answer in answers:
        table.add_row(
            answer.person,
            "yes" if answer.enrolled else "no",
            f"{answer.score:.2f}",
            f"{answer.threshold:.2f}",
            f"it is {answer.name}" if answer.name else "not enrolled",
            "right" if answer.right else "WRONG",
        )
    return table
