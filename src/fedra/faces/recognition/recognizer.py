"""A recognizer: photographs to faces and embeddings by a trained model, aligned first where there is a detector."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedra.data.decoding import Bytes
from fedra.errors import ConfigError, DataError
from fedra.faces.photos.any_photo import Photo, describe_photo, is_one_photo
from fedra.faces.photos.detection import Detector
from fedra.faces.photos.detectors import open_detector
from fedra.faces.photos.known_points import KnownPoints
from fedra.faces.recognition.answers import VerificationResult
from fedra.faces.recognition.face import Face, FaceWarning
from fedra.faces.recognition.face_finder import FaceFinder
from fedra.faces.recognition.model_source import ModelSource, Size
from fedra.faces.recognition.open_model import Normalization, OpenModel, open_model
from fedra.faces.recognition.thresholds import Decision, save_decision, stored_decision
from fedra.storage.trained_model import FACES


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings (N, d) of the photos with the indices `rows`, and by index why others have none, and notes."""

    features: Tensor
    rows: tuple[int, ...]
    problems: dict[int, str]
    notes: dict[int, tuple[str, ...]]


class FaceRecognizer:
    """Finds the faces of photographs and embeds them, with any trained model.

    Args:
        model: The folder of a run; a weight file with `network`; or any module or callable from images, float32
            (N, 3, H, W), to embeddings (N, d), with `size`.
        detector: "yunet", the path of a YuNet file or of MTCNN's folder, any callable from an image to detections, or
            `KnownPoints`. Without one, photographs must be aligned crops: of the model's input, or square with its
            longer side, of which the middle is taken.
        network: Of a weight file: its registered network with its fields, "mobilefacenet:embedding=128".
        input: Of a weight file: the height and width it reads, "112x96" or (112, 96); 112x112 unless given.
        size: Of a module or callable: the height and width it reads.
        mean: Of a module or callable: what is subtracted from each channel on the 0..1 scale.
        std: Of a module or callable: what each channel is divided by after that; the defaults give -1..1.
        fingerprint: Of a callable: a name for this very version of it, which galleries and thresholds are bound to.
            That of files and modules is a hash of their content.
        device: Where files run: "cpu", "cuda" or "auto". A module runs where it is.

    Photographs are paths (`str` or `pathlib.Path`), PIL images, `uint8` arrays (H, W, 3) in RGB or (H, W) in gray, or
    such tensors. Embeddings are those of a face and its mirror image, added, and not normalized.

    Example:
        >>> recognizer = FaceRecognizer("runs/faces", detector="yunet")
        >>> for face in recognizer.detect("group.jpg"):
        ...     print(face.box, face.embedding)
        >>> recognizer.verify("a.jpg", "b.jpg").same
        True
    """

    def __init__(
        self,
        model: Any,
        detector: Path | str | Detector | KnownPoints | None = None,
        *,
        network: str | None = None,
        input: Size | None = None,
        size: Size | None = None,
        mean: Sequence[float] = FACES,
        std: Sequence[float] = FACES,
        fingerprint: str | None = None,
        device: str = "cpu",
    ) -> None:
        normalization = Normalization(tuple(mean), tuple(std))
        self._model: OpenModel = open_model(model, network, input, size, normalization, fingerprint, device)
        self.detector_name: str | None = None
        if isinstance(detector, (str, Path)):
            self.detector_name = _absolute(detector)
            detector = open_detector(detector)
        self.detector: Detector | KnownPoints | None = detector
        self._finder = FaceFinder(detector, self._model.shape, self.embed_crops)
        self._decision: Decision | None = None

    @property
    def source(self) -> ModelSource | None:
        """Where the model is; None for a module or callable."""
        return self._model.source

    @property
    def fingerprint(self) -> str:
        """What tells models apart; galleries and thresholds are bound to it."""
        if self._model.fingerprint is None:
            raise ConfigError(
                "a gallery or threshold remembers its model, and a callable cannot be told from another: pass "
                "fingerprint='a name for this version of the model' to FaceRecognizer"
            )
        return self._model.fingerprint

    @property
    def detector_fingerprint(self) -> str | None:
        """What tells detectors apart; None without one."""
        if self.detector is None:
            return None
        found = getattr(self.detector, "fingerprint", None)
        return found or getattr(self.detector, "__qualname__", type(self.detector).__qualname__)

    @property
    def side(self) -> int:
        """The side of the square that a face is aligned to."""
        return max(self._model.shape[1:])

    @property
    def manner(self) -> str:
        """What is done to a photograph, in words."""
        if self.detector_fingerprint is None:
            return "taken as an aligned crop (no detector was given)"
        return f"aligned to {self.side}x{self.side} by {self.detector_fingerprint.partition(' ')[0]}"

    @property
    def decision(self) -> Decision | None:
        """The threshold that is used: the one that was set, or else the one that is kept beside the model."""
        if self._decision is not None or self.source is None:
            return self._decision
        return stored_decision(self.source, self.fingerprint)

    @decision.setter
    def decision(self, decision: Decision | None) -> None:
        if decision is not None and decision.fingerprint != self.fingerprint:
            raise ConfigError("the threshold was chosen for another model: choose one for this model with calibrate")
        self._decision = decision

    def save_decision(self, decision: Decision) -> Path | None:
        """Use a threshold from now on and keep it beside the model; the file, or None where the model has none."""
        self.decision = decision
        return None if self.source is None else save_decision(self.source, decision)

    def detect(self, photo: Photo) -> list[Face]:
        """All faces of a photograph, the surest first.

        Args:
            photo: A path, PIL image, array or tensor.

        Returns:
            The faces, each with `box`, `score`, `landmarks`, `crop` and `embedding`; none if none was found.

        Example:
            >>> [face.score for face in recognizer.detect(frame)]
            [0.94, 0.91]
        """
        if self.detector is None:
            raise ConfigError("finding all faces of a photograph needs a detector, such as 'yunet'")
        return self._finder.find(photo, describe_photo(photo))[0]

    def embed(self, photos: Photo | Sequence[Photo], done: Callable[[int], None] = lambda count: None) -> Tensor:
        """The embeddings of photographs, of the main face of each, in batches.

        Args:
            photos: A photograph, or a list of them.
            done: Called with 1 after each photograph.

        Returns:
            A tensor (d,) for one photograph, (N, d) for a list. A photograph that cannot be used is an error; one with
            several faces a `FaceWarning` that says which was taken.

        Example:
            >>> recognizer.embed(["a.jpg", frame]).shape
            torch.Size([2, 512])
        """
        one = is_one_photo(photos)
        found = self.embed_usable([cast(Photo, photos)] if one else cast(Sequence[Photo], photos), done)
        for problem in found.problems.values():
            raise DataError(problem)
        if not found.rows:
            raise ConfigError("photos must hold at least one photo, got an empty list")
        warn(note for notes in found.notes.values() for note in notes)
        return found.features[0] if one else found.features

    def verify(self, first: Photo, second: Photo, *, threshold: float | None = None) -> VerificationResult:
        """Whether two photographs show one person.

        Args:
            first: A photograph.
            second: Another.
            threshold: The score from which they do; the calibrated one unless given.

        Returns:
            The score, the threshold and the decision; no decision where there is no threshold.

        Example:
            >>> recognizer.verify("a.jpg", "b.jpg", threshold=0.4).same
            False
        """
        faces = self.main_face(first), self.main_face(second)
        notes = (*faces[0].notes, *faces[1].notes)
        warn(notes)
        score = float(cosine_similarity(faces[0].embedding, faces[1].embedding, dim=0))
        decision = self.decision if threshold is None else None
        limit = decision.value if decision is not None else threshold
        return VerificationResult(score, limit, None if limit is None else score >= limit, decision, faces, notes)

    def main_face(self, photo: Photo, name: str | None = None) -> Face:
        """The face that a photograph is of, with a note where there are several.

        Args:
            photo: A photograph.
            name: How messages name it.

        Returns:
            The face of the largest area minus twice the squared distance to the middle. No face is an error.

        Example:
            >>> recognizer.main_face("group.jpg").notes
            ("'group.jpg' shows 5 faces; the largest near the middle was used, at 210, 80 to 330, 240",)
        """
        return self._finder.main(photo, name or describe_photo(photo))

    def embed_usable(self, photos: Sequence[Photo], done: Callable[[int], None] = lambda count: None) -> Embedded:
        """The embeddings of all photographs that can be used, and why others cannot."""
        features: dict[int, Tensor] = {}
        problems: dict[int, str] = {}
        notes: dict[int, tuple[str, ...]] = {}
        waiting: dict[int, Bytes] = {}

        def flush() -> None:
            if waiting:
                features.update(zip(waiting, self.embed_crops(list(waiting.values())), strict=True))
                waiting.clear()

        for row, photo in enumerate(photos):
            try:
                face = self.main_face(photo, describe_photo(photo, row if len(photos) > 1 else None))
            except DataError as error:
                problems[row] = str(error)
            else:
                waiting[row] = face.crop
                if face.notes:
                    notes[row] = face.notes
            if len(waiting) >= self._model.batch:
                flush()
            done(1)
        flush()
        rows = tuple(sorted(features))
        found = torch.stack([features[row] for row in rows]) if rows else torch.zeros(0, 0)
        return Embedded(found, rows, problems, notes)

    def embed_crops(self, crops: Sequence[Bytes]) -> Tensor:
        """The embeddings (N, d) of aligned crops; without a detector those of both sizes may meet."""
        found: dict[int, Tensor] = {}
        for shape in {crop.shape for crop in crops}:
            rows = [row for row, crop in enumerate(crops) if crop.shape == shape]
            found.update(zip(rows, self._model.embed(np.stack([crops[row] for row in rows]), None), strict=True))
        return torch.stack([found[row] for row in range(len(crops))])

    def embed_images(self, images: Tensor, done: Callable[[int], None]) -> Tensor:
        """The embeddings of a data set's `uint8` images (N, C, H, W), as they are."""
        return self._model.embed(images, done)


def warn(notes: Any) -> None:
    """A warning for each note, at the line that called fedra."""
    for note in notes:
        warnings.warn(note, FaceWarning, stacklevel=3)


def _absolute(detector: Path | str) -> str:
    """A detector as a gallery keeps it, to be found from any folder."""
    path = Path(detector).expanduser()
    return str(path.resolve()) if path.exists() else str(detector)
