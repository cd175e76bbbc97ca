"""Networks in ONNX files, run by onnxruntime (the extra `faces`)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedra.errors import ConfigError, DataError

Floats = NDArray[np.float32]
PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


class Network:
    """An ONNX file with one input; calling it gives all outputs by name."""

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise ConfigError("face detection needs onnxruntime: pip install 'fedra[faces]'") from None
        if not path.is_file():
            raise DataError(f"there is no detector file '{path}': check the path")
        content = path.read_bytes()
        self.path, self.sha256 = path, hashlib.sha256(content).hexdigest()
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        there = [name for name in PROVIDERS if name in onnxruntime.get_available_providers()]
        try:
            self._session = onnxruntime.InferenceSession(content, settings, providers=there)
        except Exception as error:  # onnxruntime has classes of its own for each way to fail
            reason = str(error).partition("\n")[0]
            raise DataError(f"the detector file '{path}' is no usable ONNX network ({reason})") from None
        self._input = self._session.get_inputs()[0]
        self.outputs: dict[str, list[Any]] = {item.name: item.shape for item in self._session.get_outputs()}

    @property
    def input_shape(self) -> list[Any]:
        """The sides of the input; a name where a side is free."""
        shape: list[Any] = self._input.shape
        return shape

    def __call__(self, values: Floats) -> dict[str, Floats]:
        found = self._session.run(None, {self._input.name: np.ascontiguousarray(values, dtype=np.float32)})
        return dict(zip(self.outputs, found, strict=True))
