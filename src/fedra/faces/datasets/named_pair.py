"""A pair of photos as lists name it."""

from __future__ import annotations

from dataclasses import dataclass

Photo = tuple[str, int]
"""A person's name and the number of the image, from 1."""


@dataclass(frozen=True)
class NamedPair:
    """A pair of photos.

    Args:
        first: Person and image number of the first photo.
        second: Person and image number of the second photo.
        fold: Fold of the pair, from 0.

    Example:
        >>> NamedPair(("Ada", 1), ("Ada", 2), 0).same
        True
    """

    first: Photo
    second: Photo
    fold: int

    @property
    def same(self) -> bool:
        """Whether both photos show the same person."""
        return self.first[0] == self.second[0]
