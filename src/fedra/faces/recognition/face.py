"""A face that a recognizer found in a photo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedra.data.decoding import Bytes
from fedra.faces.photos.landmarks import Points


class FaceWarning(UserWarning):
    """Warns that a photo was used but its result may be unreliable: it shows several faces, or a very small one.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", fedra.faces.FaceWarning)
    """


class CropBatch:
    """Aligned crops that are embedded in one batch when the first embedding is requested."""

    def __init__(self, crops: Sequence[Bytes], embed: Callable[[Sequence[Bytes]], Tensor]) -> None:
        self.crops, self._embed = crops, embed

    @cached_property
    def embeddings(self) -> Tensor:
        """Embeddings (N, d)."""
        return self._embed(self.crops)


class Face:
    """A face found in a photo; `FaceRecognizer.detect` returns them.

    Args:
        box: Left, top, right and bottom edge in pixels.
        score: Confidence of the detector, from 0 to 1; None without a detector.
        landmarks: Five points (5, 2), x first; None without a detector.
        batch: The crops of all faces in the photo, which are embedded together.
        row: Index of this face in `batch`.
        notes: Possible problems: other faces in the photo, too few pixels.

    Attributes:
        box: Left, top, right and bottom edge in pixels.
        score: Confidence of the detector, from 0 to 1; None without a detector.
        landmarks: Five points (5, 2), x first; None without a detector.
        notes: Possible problems: other faces in the photo, too few pixels.

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
        """The aligned crop that the model receives, `uint8` (H, W, C)."""
        return self._batch.crops[self._row]

    @property
    def embedding(self) -> Tensor:
        """The embedding (d,), not normalized; all faces of a photo are embedded in one batch."""
        return self._batch.embeddings[self._row]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the box, rounded to whole pixels."""
        left, top, right, bottom = self.box
        return round(right - left), round(bottom - top)

    def with_notes(self, notes: Sequence[str]) -> Face:
        """Return a copy of this face with the given notes.

        Args:
            notes: The new notes, which replace the present ones.

        Returns:
            The copy; it shares the crops and embeddings.

        Example:
            >>> face.with_notes(["the photo is blurred"]).notes
            ('the photo is blurred',)
        """
        return Face(self.box, self.score, self.landmarks, self._batch, self._row, tuple(notes))

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score={self.score:.2f}"
        notes = f", notes={self.notes}" if self.notes else ""
        return f"Face(box={[round(float(side)) for side in self.box]}{score}{notes})"


def embed_together(faces: Sequence[Face], embed: Callable[[Sequence[Bytes]], Tensor]) -> list[Face]:
    """Return copies of faces of any photos that are embedded in one batch, without the other faces of the photos."""
    batch = CropBatch([face.crop for face in faces], embed)
    return [Face(face.box, face.score, face.landmarks, batch, row, face.notes) for row, face in enumerate(faces)]
