"""Location and fingerprint of a recognizer's model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import BaseModel

from fedra.config.names import read_word
from fedra.errors import ConfigError, RunError
from fedra.faces.recognition.onnx_model import open_onnx_embedder
from fedra.models import Embedder
from fedra.models.embedder import Flip
from fedra.storage.trained_model import load_embedder, load_embedder_weights

FLIP: Flip = "sum"
"""The embeddings of a photo and its mirror image are added, as in InsightFace's evaluations."""
Size = tuple[int, int] | int | str
"""Height and width: (112, 96), "112x96", or 112 for a square."""


class ModelSource(BaseModel):
    """Location of a recognizer's model: a run's folder, an exported .onnx file, or a weight file with its network.

    Args:
        path: The run's folder, the .onnx file or the weight file.
        network: For a weight file: registered network with its fields, such as `mobilefacenet:embedding=128`.
        size: For a weight file: input height and width.

    Example:
        >>> ModelSource(path="weights.pt", network="mobilefacenet:embedding=128", size=(112, 96)).fingerprint()
    """

    path: str
    network: str | None = None
    size: tuple[int, int] = (112, 112)

    @property
    def file(self) -> Path:
        """The file with the weights."""
        return Path(self.path) if self.network or self.is_onnx else Path(self.path) / "model.safetensors"

    @property
    def is_onnx(self) -> bool:
        """Whether the model is an exported file, which is run as it is, without mirror images."""
        return self.network is None and self.path.lower().endswith(".onnx")

    def embedder(self, device: str = "cpu", *, trust: bool = False) -> Embedder:
        """Open the model.

        Args:
            device: "cpu", "cuda" or "auto".
            trust: For a run: import the model if it is your own code (`module:function`).

        Returns:
            The embedder, with the preprocessing of the model.

        Example:
            >>> ModelSource(path="runs/faces").embedder().shape
            (3, 112, 112)
        """
        if self.is_onnx:
            return open_onnx_embedder(Path(self.path))
        if self.network is None:
            if Path(self.path).is_file():
                raise ConfigError(
                    f"network must be set for the weight file '{self.path}': name it, such as "
                    "mobilefacenet:embedding=128, or give the folder of a run"
                )
            return load_embedder(self.path, fit="crop", flip=FLIP, device=device, trust=trust)
        name, settings = read_word(self.network)
        return load_embedder_weights(
            self.path, name, shape=(3, *self.size), fit="crop", flip=FLIP, device=device, **settings
        )

    def fingerprint(self) -> str:
        """Identify the model.

        Returns:
            A hash of the file, for a weight file also of its network and input size.

        Example:
            >>> len(ModelSource(path="runs/faces").fingerprint())
            32
        """
        read = None if self.network is None else [self.network, self.size]
        try:
            with self.file.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise RunError(
                f"the model file '{self.file}' cannot be read ({error.strerror}): give the current path of the model"
            ) from None
        flip = "none" if self.is_onnx else FLIP
        return hashlib.sha256(json.dumps([content, read, flip]).encode()).hexdigest()[:32]


def read_size(size: Size) -> tuple[int, int]:
    """Parse height and width from `112x96`, (112, 96) or 112."""
    if isinstance(size, str):
        sides = size.lower().split("x")
        if len(sides) == 2 and all(side.isdecimal() and int(side) for side in sides):
            return int(sides[0]), int(sides[1])
    else:
        height, width = (size, size) if isinstance(size, int) else size
        if height > 0 and width > 0:
            return height, width
    raise ConfigError(f"size must be height x width in positive pixels, such as 112x96, got '{size}'")
