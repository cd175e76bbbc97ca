"""A recogniser: photographs to embeddings by a trained model, aligned first where there is a detector."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from fedra.config.names import read_word
from fedra.data.decoding import Bytes
from fedra.errors import ConfigError, DataError, RunError
from fedra.faces.photos.alignment import align_face
from fedra.faces.photos.detection import Detector, main_face
from fedra.faces.photos.detectors import open_detector
from fedra.faces.photos.photo_files import read_photograph
from fedra.models import Embedder
from fedra.models.embedder import Flip
from fedra.storage.trained_model import embedder_of_run, embedder_of_weights

FLIP: Flip = "sum"
"""A photograph and its mirror image are embedded and added, as in InsightFace's evaluations."""


class ModelSource(BaseModel):
    """Where a recogniser's model is: a run's folder, or a weight file with its network and input.

    `network` is a registered model with its fields, `mobilefacenet:embedding=128`; `size` is (height, width).
    """

    path: str
    network: str | None = None
    size: tuple[int, int] = (112, 112)

    @property
    def file(self) -> Path:
        """The file with the weights."""
        return Path(self.path) if self.network else Path(self.path) / "model.safetensors"

    def embedder(self, device: str = "cpu") -> Embedder:
        """The model, ready to embed."""
        if self.network is None:
            if Path(self.path).is_file():
                raise ConfigError(f"'{self.path}' is a file: name its network (--network), or give a run's folder")
            return embedder_of_run(self.path, fit="crop", flip=FLIP, device=device)
        name, settings = read_word(self.network)
        return embedder_of_weights(
            self.path, name, shape=(3, *self.size), fit="crop", flip=FLIP, device=device, **settings
        )

    def fingerprint(self) -> str:
        """What tells models apart: a hash of the file, and for a weight file of how it is read."""
        read = None if self.network is None else [self.network, self.size]
        try:
            with self.file.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise RunError(
                f"the model file '{self.file}' cannot be read ({error.strerror}): say where it is with --model"
            ) from None
        return hashlib.sha256(json.dumps([content, read, FLIP]).encode()).hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings (N, d) of the photographs `paths`, and why others have none."""

    features: Tensor
    paths: tuple[Path, ...]
    problems: dict[Path, str]


class FaceRecognizer:
    """`recogniser.embed(paths)`: photographs to embeddings, the main face of each.

    With a detector, faces are found and aligned to the model's input. Without one, photographs must be aligned crops:
    of the model's input, or square with its longer side, of which the middle is taken.
    """

    def __init__(self, embedder: Embedder, fingerprint: str, detector: Detector | None = None) -> None:
        if embedder.shape[0] not in (1, 3):
            raise ConfigError(f"a recogniser reads grey or colour images, and this model {embedder.shape[0]} channels")
        self.embedder, self.fingerprint, self.detector = embedder, fingerprint, detector

    @property
    def side(self) -> int:
        """The side of the square that a face is aligned to."""
        return max(self.embedder.shape[1:])

    @property
    def manner(self) -> str:
        """What is done to a photograph, in words."""
        if self.detector is None:
            return "taken as an aligned crop (no detector was given)"
        return f"aligned to {self.side}x{self.side} by {self.detector.fingerprint.partition(' ')[0]}"

    def crop(self, path: Path) -> Bytes:
        """The main face of a photograph, as the model reads it (H, W, C)."""
        image = read_photograph(path)
        if self.detector is None:
            self._check_aligned(path, image)
        else:
            face = main_face(self.detector(image), image.shape)
            if face is None:
                raise DataError(f"no face was found in '{path}': take another photograph")
            image = align_face(image, face.points, self.side)
        return image if self.embedder.shape[0] == 3 else _grey(image)

    def _check_aligned(self, path: Path, image: Bytes) -> None:
        height, width = self.embedder.shape[1:]
        if image.shape[:2] not in ((height, width), (self.side, self.side)):
            raise DataError(
                f"'{path}' has {image.shape[0]}x{image.shape[1]} pixels and the model reads {height}x{width}: give a "
                f"detector (--detector), or align it first with `fedra align --size {self.side}`"
            )

    def embed(self, paths: Sequence[Path], done: Callable[[int], None] = lambda count: None) -> Embedded:
        """The embeddings of all photographs that can be used; `done` is told how many more are through."""
        features: list[Tensor] = []
        used: list[Path] = []
        problems: dict[Path, str] = {}
        waiting: dict[Path, Bytes] = {}

        def flush() -> None:
            # Without a detector both sizes of crops may meet.
            for shape in {crop.shape for crop in waiting.values()}:
                some = {path: crop for path, crop in waiting.items() if crop.shape == shape}
                used.extend(some)
                features.append(self.embedder(np.stack(list(some.values()))))
            waiting.clear()

        for path in paths:
            try:
                waiting[path] = self.crop(path)
            except DataError as error:
                problems[path] = str(error)
            if len(waiting) >= self.embedder.batch:
                flush()
            done(1)
        flush()
        return Embedded(torch.cat(features) if features else torch.zeros(0, 0), tuple(used), problems)

    def embed_one(self, path: Path) -> Tensor:
        """The embedding (1, d) of one photograph; what is wrong with it is raised."""
        return self.embedder(self.crop(path)[None])


def _grey(image: Bytes) -> Bytes:
    from PIL import Image

    grey: Bytes = np.asarray(Image.fromarray(image).convert("L"))
    return grey[..., None]


def read_size(text: str) -> tuple[int, int]:
    """Height and width as `112x96`."""
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise ConfigError(f"the input '{text}' is no size: give height x width, such as 112x112")
    return int(sides[0]), int(sides[1])


def open_recognizer(source: ModelSource, detector: Path | str | None = None, *, device: str = "cpu") -> FaceRecognizer:
    """The recogniser of a model, with a detector by name or path."""
    embedder = source.embedder(device)
    return FaceRecognizer(embedder, source.fingerprint(), None if detector is None else open_detector(detector))
