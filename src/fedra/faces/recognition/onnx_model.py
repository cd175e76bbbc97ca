"""A model that `fedra export` wrote, run by onnxruntime: the embeddings of the applications that use the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from fedra.errors import ConfigError, RunError
from fedra.file_reading import LARGE, read_file
from fedra.models import Embedder

Side = Annotated[int, Field(ge=1, le=10_000)]


class OnnxMetadata(BaseModel):
    """The metadata that a recognizer needs: images of bytes, channels last."""

    input: Literal["images"]
    input_layout: Literal["N,H,W,C"]
    input_type: Literal["uint8"]
    input_shape: tuple[Side, Side, Side]


def open_onnx_embedder(path: Path) -> Embedder:
    """Open an exported model.

    Args:
        path: The .onnx file.

    Returns:
        The embedder; mirror images are not added, since an application that uses the file does not add them either.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError("an .onnx model needs onnxruntime: pip install 'fedra[faces]'") from None
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    try:
        content = read_file(path, LARGE)
        session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    except OSError as error:
        raise RunError(f"the model file '{path}' cannot be read ({error.strerror}): check the path") from None
    except Exception as error:  # onnxruntime's errors share no base class
        reason = str(error).partition("\n")[0][:200]
        raise RunError(f"the model file '{path}' is not a usable ONNX network ({reason}): export it again") from None
    about = _read_metadata(path, session.get_modelmeta().custom_metadata_map)
    name = session.get_inputs()[0].name

    def embed(images: Tensor) -> Tensor:
        found = session.run(None, {name: images.permute(0, 2, 3, 1).contiguous().numpy()})
        return torch.from_numpy(found[0])

    return Embedder(embed, lambda images: images, about.input_shape, fit="crop")


def _read_metadata(path: Path, found: dict[str, str]) -> OnnxMetadata:
    values: dict[str, Any] = dict(found)
    try:
        values["input_shape"] = json.loads(values.get("input_shape", "null"))
        return OnnxMetadata.model_validate(values)
    except (ValidationError, ValueError, RecursionError):
        raise RunError(
            f"the model '{path}' must read images of bytes and be exported by fedra, got another one: export it with "
            "`fedra export`"
        ) from None
