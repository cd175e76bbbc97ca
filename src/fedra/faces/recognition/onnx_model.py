"""A model that `fedra export` wrote, run by onnxruntime: the embeddings of the applications that use the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from fedra.errors import RunError
from fedra.faces.photos.onnx_session import OnnxSession
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
    session = OnnxSession(path, "model file", RunError, "export it again")
    about = _read_metadata(path, session.metadata)

    def embed(images: Tensor) -> Tensor:
        found = next(iter(session(images.permute(0, 2, 3, 1).numpy()).values()))
        if getattr(found, "dtype", None) != np.float32 or found.ndim != 2 or len(found) != len(images):
            raise RunError(
                f"the first output of the model file '{path}' must be one embedding of floats per image, got another "
                "one: export it again"
            )
        return torch.from_numpy(found)

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
