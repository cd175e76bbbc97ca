"""The networks of detectors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedra.data.decoding import Bytes
from fedra.errors import ConfigError, DataError
from fedra.faces.photos.interleaved_input import read_interleaved
from fedra.faces.photos.onnx_session import CPU, OnnxSession

Floats = NDArray[np.float32]
PROVIDERS = ("CUDAExecutionProvider", CPU)


class Network:
    """An ONNX network with one input; a call returns all outputs by name."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(f"the detector file '{path}' does not exist: check the path, or choose 'yunet'")
        self.path = path
        self._open()
        self.sha256 = hashlib.sha256(self._session.content).hexdigest()

    def _open(self, content: bytes | None = None) -> None:
        self._session = OnnxSession(self.path, "detector file", DataError, "give another file", PROVIDERS, content)
        self.outputs = self._session.outputs

    def take_images(self) -> None:
        """From now on take images (1, H, W, 3) of bytes, red first, instead of planes (1, 3, H, W), blue first."""
        self._open(read_interleaved(self._session.content, self._session.input.name))

    @property
    def input_shape(self) -> list[Any]:
        """Shape of the input; a dynamic dimension is given by its name."""
        shape: list[Any] = self._session.input.shape
        return shape

    def __call__(self, values: Floats | Bytes) -> dict[str, Floats]:
        try:
            return self._session(values)
        except DataError as error:  # of the detector, for which no photo is to be skipped
            raise ConfigError(str(error)) from None
