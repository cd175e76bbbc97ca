"""Open the model of a recognizer from a run, a weight file, an embedder, a module or a callable."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedra.core.device import build_device
from fedra.data import Transform
from fedra.errors import ConfigError
from fedra.faces.recognition.model_source import FLIP, ModelSource, Size, read_size
from fedra.models import Embedder


@dataclass(frozen=True)
class Normalization:
    """Per-channel mean and standard deviation of the input of a module or callable."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class OpenModel:
    """A model that embeds `uint8` images, with its location and fingerprint where known."""

    embed: Callable[[Any, Callable[[int], None] | None], Tensor]
    shape: tuple[int, ...]
    batch: int
    source: ModelSource | None
    fingerprint: str | None


def open_model(
    model: Any,
    network: str | None,
    input: Size | None,
    size: Size | None,
    normalization: Normalization,
    fingerprint: str | None,
    device: str,
    *,
    trust: bool = False,
) -> OpenModel:
    """Open a model; raise for options that belong to another kind of model."""
    if isinstance(model, (str, Path, ModelSource)):
        if size is not None or fingerprint is not None:
            raise ConfigError("size and fingerprint are only for a module or callable: for a weight file pass input")
        source = _locate(model, network, input)
        return _checked(source.embedder(device, trust=trust), source, source.fingerprint())
    if network is not None or input is not None:
        raise ConfigError("network and input are only for a weight file: for a module or callable pass size")
    if isinstance(model, Embedder):
        return _checked(model, None, fingerprint)
    if not callable(model):
        raise ConfigError(
            "model must be the folder of a run, a weight file, a module or a callable, got an object of type "
            f"{type(model).__name__}"
        )
    if size is None:
        raise ConfigError("size must be set for a module or callable: FaceRecognizer(net, size=112)")
    shape, prepare = (3, *read_size(size)), Transform(normalization.mean, normalization.std).prepare
    where = None if isinstance(model, nn.Module) else build_device(device)  # a module runs where it is
    own = Embedder(model, prepare, shape, fit="crop", flip=FLIP, device=where)
    return _checked(own, None, fingerprint or _fingerprint(model, shape, normalization))


def _locate(model: str | Path | ModelSource, network: str | None, input: Size | None) -> ModelSource:
    """Return a model's location with an absolute path, so a gallery can be used from any folder."""
    if isinstance(model, ModelSource):
        return model
    path = str(Path(model).expanduser().resolve())
    return ModelSource(path=path, network=network, size=read_size(input or (112, 112)))


def _checked(embedder: Embedder, source: ModelSource | None, fingerprint: str | None) -> OpenModel:
    if embedder.shape[0] not in (1, 3):
        raise ConfigError(f"the model of a recognizer must read 1 or 3 channels, got {embedder.shape[0]}")
    return OpenModel(embedder, embedder.shape, embedder.batch, source, fingerprint)


def _fingerprint(model: Any, shape: tuple[int, ...], normalization: Normalization) -> str | None:
    """Hash a module's weights and preprocessing; None for a callable, whose content cannot be read."""
    if not isinstance(model, nn.Module):
        return None
    digest = hashlib.sha256(f"{type(model).__qualname__} {shape} {normalization} {FLIP}".encode())
    for name, values in sorted(model.state_dict().items()):
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
