"""Networks of others, run by onnxruntime (the extra `faces`): all that can go wrong is raised as an error of fedra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedra.errors import ConfigError, FedraError
from fedra.file_reading import LARGE, read_file

CPU = "CPUExecutionProvider"
LONGEST = 200
"""Characters of a reason."""


class OnnxSession:
    """An ONNX network with one input.

    Args:
        path: The file.
        kind: What the file is, such as "model file".
        error: The error to raise.
        advice: What to do then.
        providers: onnxruntime's providers, those that are there.
        content: The network, if it is not what is in the file.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        error: type[FedraError],
        advice: str,
        providers: Sequence[str] = (CPU,),
        content: bytes | None = None,
    ) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise ConfigError(f"a {kind} needs onnxruntime: pip install 'fedra[faces]'") from None
        self._file, self._error, self._advice = f"the {kind} '{path}'", error, advice
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4  # errors are raised, too
        available = [name for name in providers if name in onnxruntime.get_available_providers()]
        try:
            self.content = read_file(path, LARGE) if content is None else content
            self._session = onnxruntime.InferenceSession(
                self.content, settings, providers=available, enable_fallback=len(available) > 1
            )
            self.input, *_ = self._session.get_inputs()
            outputs = self._session.get_outputs()
            self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        except OSError as problem:
            raise error(f"{self._file} cannot be read ({problem.strerror}): check the path") from None
        except Exception as problem:  # onnxruntime's errors share no base class
            raise error(f"{self._file} is not a usable ONNX network ({_reason(problem)}): {advice}") from None
        self.outputs: dict[str, list[Any]] = {item.name: item.shape for item in outputs}
        if len(self.outputs) < len(outputs):
            raise error(f"{self._file} must have outputs with different names, got two with the same: {advice}")

    def __call__(self, values: NDArray[Any]) -> dict[str, Any]:
        """Return all outputs by name."""
        try:
            found = self._session.run(None, {self.input.name: np.ascontiguousarray(values)})
        except Exception as problem:
            shape = " x ".join(map(str, values.shape))
            raise self._error(
                f"{self._file} must be a network that runs on {shape} numbers, got an error ({_reason(problem)}): "
                f"{self._advice}"
            ) from None
        return dict(zip(self.outputs, found, strict=True))


def _reason(problem: Exception) -> str:
    return str(problem).partition("\n")[0][:LONGEST]
