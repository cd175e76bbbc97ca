"""A face of a photograph, as a recognizer hands it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedra.data.decoding import Bytes
from fedra.faces.photos.landmarks import Points


class FaceWarning(UserWarning):
    """A photograph was used, and its result may not be what was meant: several faces, or a very small one."""


class CropBatch:
    """Crops that are embedded together, when the first of their embeddings is asked for."""

    def __init__(self, crops: Sequence[Bytes], embed: Callable[[Sequence[Bytes]], Tensor]) -> None:
        self.crops, self._embed = crops, embed

    @cached_property
    def embeddings(self) -> Tensor:
        """The embeddings (N, d)."""
        return self._embed(self.crops)


class Face:
    """A face of a photograph.

    Attributes:
        box: Left, top, right and bottom in pixels.
        score: How sure the detector is, from 0 to 1; None without a detector.
        landmarks: Five points (5, 2), x first, or None without a detector.
        notes: Sentences about what may be wrong with it: other faces beside it, very few pixels.

    Example:
        >>> for face in recognizer.detect("group.jpg"):
        ...     print(face.box.round(), f"{face.score:.2f}", face.embedding.shape)
    """

    def __init__(
        self,
        box: NDArray[np.float64],
        score: float | None,
        landmarks: Points | None,
        batch: CropBatch,
        row: int,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.box, self.score, self.landmarks, self.notes = box, score, landmarks, notes
        self._batch, self._row = batch, row

    @property
    def crop(self) -> Bytes:
        """The aligned face as the model reads it, `uint8` (H, W, C)."""
        return self._batch.crops[self._row]

    @property
    def embedding(self) -> Tensor:
        """The embedding (d,), not normalized; those of all faces of a photograph are computed at once."""
        return self._batch.embeddings[self._row]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the box in whole pixels."""
        left, top, right, bottom = self.box
        return round(right - left), round(bottom - top)

    def with_notes(self, notes: Sequence[str]) -> Face:
        """The same face with other notes."""
        return Face(self.box, self.score, self.landmarks, self._batch, self._row, tuple(notes))

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score={self.score:.2f}"
        notes = f", notes={self.notes}" if self.notes else ""
        return f"Face(box={[round(float(side)) for side in self.box]}{score}{notes})"
