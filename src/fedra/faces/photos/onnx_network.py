"""ONNX networks run by onnxruntime (the extra `faces`)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedra.data.decoding import Bytes
from fedra.errors import ConfigError, DataError
from fedra.faces.photos.interleaved_input import read_interleaved

Floats = NDArray[np.float32]
PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


class Network:
    """An ONNX network with one input; a call returns all outputs by name."""

    def __init__(self, path: Path) -> None:
        try:
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401
        except ImportError:
            raise ConfigError("face detection needs onnx and onnxruntime: pip install 'fedra[faces]'") from None
        if not path.is_file():
            raise DataError(f"the detector file '{path}' does not exist: check the path, or choose 'yunet'")
        self.path, self._content = path, path.read_bytes()
        self.sha256 = hashlib.sha256(self._content).hexdigest()
        self._open(self._content)

    def _open(self, content: bytes) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        available = [name for name in PROVIDERS if name in onnxruntime.get_available_providers()]
        try:
            self._session = onnxruntime.InferenceSession(content, settings, providers=available)
        except Exception as error:  # onnxruntime's errors share no base class
            reason = str(error).partition("\n")[0]
            raise DataError(f"the detector file '{self.path}' is not a usable ONNX network ({reason})") from None
        self._input = self._session.get_inputs()[0]
        self.outputs: dict[str, list[Any]] = {item.name: item.shape for item in self._session.get_outputs()}

    def take_images(self) -> None:
        """From now on take images (1, H, W, 3) of bytes, red first, instead of planes (1, 3, H, W), blue first."""
        self._open(read_interleaved(self._content, self._input.name))

    @property
    def input_shape(self) -> list[Any]:
        """Shape of the input; a dynamic dimension is given by its name."""
        shape: list[Any] = self._input.shape
        return shape

    def __call__(self, values: Floats | Bytes) -> dict[str, Floats]:
        found = self._session.run(None, {self._input.name: np.ascontiguousarray(values)})
        return dict(zip(self.outputs, found, strict=True))
