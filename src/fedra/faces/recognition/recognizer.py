"""A recognizer: detects and aligns faces in photos and embeds them with a trained model."""

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
from fedra.faces.recognition.thresholds import Decision, read_decision, save_decision
from fedra.storage.trained_model import FACES


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings (N, d) of the usable photos `rows`, and problems and notes by index of the photo."""

    features: Tensor
    rows: tuple[int, ...]
    problems: dict[int, str]
    notes: dict[int, tuple[str, ...]]


class FaceRecognizer:
    """Detects the faces in photos and embeds them with any trained model.

    Photos are paths (`str` or `pathlib.Path`), PIL images, `uint8` arrays (H, W, 3) in RGB or (H, W) in gray, or such
    tensors. The embedding of a face is the sum of the embeddings of its crop and the mirrored crop, not normalized.

    Args:
        model: Folder of a run; weight file (with `network`); or module or callable that maps images, float32
            (N, 3, H, W), to embeddings (N, d) (with `size`).
        detector: "yunet", the path of a YuNet file or of a folder with the MTCNN files, a callable that maps an image
            to detections, or `KnownPoints`. Without a detector, photos must be aligned crops: either the model's input
            size, or a square with its longer side, which is center-cropped.
        network: For a weight file: registered network with its fields, such as "mobilefacenet:embedding=128".
        input: For a weight file: input height and width, "112x96" or (112, 96); default 112x112.
        size: For a module or callable: input height and width.
        mean: For a module or callable: subtracted from each channel on the 0..1 scale.
        std: For a module or callable: each channel is divided by it after that; the defaults map to -1..1.
        fingerprint: For a callable: a name for this version of the model; galleries and thresholds are bound to it.
            For files and modules it is a hash of their content.
        device: For files: device of the model, "cpu", "cuda" or "auto". A module runs on the device it is on.
        trust: For a run: import the model if it is your own code (`module:function`). Importing runs that code.

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
        trust: bool = False,
    ) -> None:
        normalization = Normalization(tuple(mean), tuple(std))
        self._model: OpenModel = open_model(
            model, network, input, size, normalization, fingerprint, device, trust=trust
        )
        self.detector_name: str | None = None
        if isinstance(detector, (str, Path)):
            self.detector_name = _absolute(detector)
            detector = open_detector(detector)
        self.detector: Detector | KnownPoints | None = detector
        self._finder = FaceFinder(detector, self._model.shape, self.embed_crops)
        self._decision: Decision | None = None

    @property
    def source(self) -> ModelSource | None:
        """Location of the model; None for a module or callable."""
        return self._model.source

    @property
    def fingerprint(self) -> str:
        """Identifier of the model; galleries and thresholds are bound to it."""
        if self._model.fingerprint is None:
            raise ConfigError(
                "a callable needs a fingerprint to be used with a gallery or threshold: pass fingerprint='a name for "
                "this version of the model' to FaceRecognizer"
            )
        return self._model.fingerprint

    @property
    def detector_fingerprint(self) -> str | None:
        """Identifier of the detector; None without one."""
        if self.detector is None:
            return None
        found = getattr(self.detector, "fingerprint", None)
        return found or getattr(self.detector, "__qualname__", type(self.detector).__qualname__)

    @property
    def side(self) -> int:
        """Side in pixels of the square that faces are aligned to."""
        return max(self._model.shape[1:])

    @property
    def preparation(self) -> str:
        """How photos are prepared, as a phrase that follows "each photo was"."""
        if self.detector_fingerprint is None:
            return "used as an aligned crop (no detector given)"
        return f"aligned to {self.side}x{self.side} by {self.detector_fingerprint.partition(' ')[0]}"

    @property
    def decision(self) -> Decision | None:
        """The threshold in use: the one that was set, otherwise the one stored next to the model."""
        if self._decision is not None or self.source is None:
            return self._decision
        return read_decision(self.source, self.fingerprint)

    @decision.setter
    def decision(self, decision: Decision | None) -> None:
        if decision is not None and decision.fingerprint != self.fingerprint:
            raise ConfigError(
                "the threshold must have been chosen for this model, got one for another model: choose one with "
                "calibrate"
            )
        self._decision = decision

    def save_decision(self, decision: Decision) -> Path | None:
        """Use a threshold and store it next to the model.

        Args:
            decision: The threshold, as `calibrate` chose it.

        Returns:
            The file that was written; None for a module or callable, which has no folder.

        Example:
            >>> recognizer.save_decision(decision)
            PosixPath('runs/faces/threshold.json')
        """
        self.decision = decision
        return None if self.source is None else save_decision(self.source, decision)

    def detect(self, photo: Photo) -> list[Face]:
        """Detect all faces in a photo.

        Args:
            photo: A path, PIL image, array or tensor.

        Returns:
            The faces in descending order of the detector's confidence, each with `box`, `score`, `landmarks`, `crop`
            and `embedding`; an empty list if there is none.

        Example:
            >>> [face.score for face in recognizer.detect(frame)]
            [0.94, 0.91]
        """
        if self.detector is None:
            raise ConfigError("detect needs a detector, got None: create the recognizer with detector='yunet'")
        return self._finder.find(photo, describe_photo(photo))[0]

    def embed(self, photos: Photo | Sequence[Photo], done: Callable[[int], None] = lambda count: None) -> Tensor:
        """Embed the main face of each photo.

        Args:
            photos: A photo, or a list of photos.
            done: Called with 1 after each photo.

        Returns:
            A tensor (d,) for one photo, (N, d) for a list. A photo that cannot be used raises `DataError`; one with
            several faces emits a `FaceWarning` that says which face was used.

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
        """Decide whether two photos show the same person.

        Args:
            first: A photo.
            second: The photo to compare it with.
            threshold: Score at or above which they are accepted as the same person; default: the calibrated one.

        Returns:
            The score, the threshold and whether the pair was accepted; `same` is None without a threshold.

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
        """Return the main face of a photo, with a note if there are several.

        Args:
            photo: A photo.
            name: What messages call the photo; default: its path.

        Returns:
            The face with the largest value of its area minus twice the squared distance of its center from the center
            of the photo. A photo without a face raises `DataError`.

        Example:
            >>> recognizer.main_face("group.jpg").notes
            ("'group.jpg' shows 5 faces; the largest near the middle was used, at 210, 80 to 330, 240",)
        """
        return self._finder.main(photo, name or describe_photo(photo))

    def embed_usable(self, photos: Sequence[Photo], done: Callable[[int], None] = lambda count: None) -> Embedded:
        """Embed all usable photos.

        Args:
            photos: The photos.
            done: Called with 1 after each photo.

        Returns:
            The embeddings and indices of the usable photos, and by index why each of the others is not usable.

        Example:
            >>> recognizer.embed_usable(["a.jpg", "broken.jpg"]).rows
            (0,)
        """
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
        """Embed aligned crops.

        Args:
            crops: Crops, `uint8` (H, W, C).

        Returns:
            The embeddings (N, d).

        Example:
            >>> recognizer.embed_crops([face.crop for face in faces]).shape
            torch.Size([2, 512])
        """
        # Without a detector, crops of both permitted sizes may be in one batch.
        found: dict[int, Tensor] = {}
        for shape in {crop.shape for crop in crops}:
            rows = [row for row, crop in enumerate(crops) if crop.shape == shape]
            found.update(zip(rows, self._model.embed(np.stack([crops[row] for row in rows]), None), strict=True))
        return torch.stack([found[row] for row in range(len(crops))])

    def embed_images(self, images: Tensor, done: Callable[[int], None]) -> Tensor:
        """Embed the images of a data set without detection.

        Args:
            images: Aligned images, `uint8` (N, C, H, W).
            done: Called with the number of images after each batch.

        Returns:
            The embeddings (N, d).

        Example:
            >>> recognizer.embed_images(data.test.inputs, lambda count: None).shape
            torch.Size([400, 512])
        """
        return self._model.embed(images, done)


def warn(notes: Any) -> None:
    """Emit a `FaceWarning` per note, attributed to the line that called fedra."""
    for note in notes:
        warnings.warn(note, FaceWarning, stacklevel=3)


def _absolute(detector: Path | str) -> str:
    """Return an existing path as absolute, so a gallery can be used from any folder; names stay as they are."""
    path = Path(detector).expanduser()
    return str(path.resolve()) if path.exists() else str(detector)
