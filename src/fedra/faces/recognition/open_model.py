"""The model of a recognizer from whatever names it: a run, a weight file, an embedder, a module, a callable."""

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
    """What a module or callable wants subtracted from each channel, and divided by."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class OpenModel:
    """A model that embeds `uint8` images, where it is, and what tells it from others, as far as that is known."""

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
) -> OpenModel:
    """Open a model; options that belong to another kind of model are refused."""
    if isinstance(model, (str, Path, ModelSource)):
        if size is not None or fingerprint is not None:
            raise ConfigError("size and fingerprint belong to a module or callable: a weight file takes input instead")
        return _of_files(_source(model, network, input), device)
    if network is not None or input is not None:
        raise ConfigError("network and input belong to a weight file: a module or callable takes size instead")
    if isinstance(model, Embedder):
        return _opened(model, None, fingerprint)
    if not callable(model):
        raise ConfigError(
            f"a model must be the folder of a run, a weight file, or a module or callable, got {type(model).__name__}"
        )
    if size is None:
        raise ConfigError("a module or callable needs the height and width it reads: FaceRecognizer(net, size=112)")
    shape, prepare = (3, *read_size(size)), Transform(normalization.mean, normalization.std).prepare
    where = None if isinstance(model, nn.Module) else build_device(device)  # a module runs where it is
    own = Embedder(model, prepare, shape, fit="crop", flip=FLIP, device=where)
    return _opened(own, None, fingerprint or _fingerprint(model, shape, normalization))


def _source(model: str | Path | ModelSource, network: str | None, input: Size | None) -> ModelSource:
    """Where a model is, to be found from any folder."""
    if isinstance(model, ModelSource):
        return model
    path = str(Path(model).expanduser().resolve())
    return ModelSource(path=path, network=network, size=read_size(input or (112, 112)))


def _of_files(source: ModelSource, device: str) -> OpenModel:
    return _opened(source.embedder(device), source, source.fingerprint())


def _opened(embedder: Embedder, source: ModelSource | None, fingerprint: str | None) -> OpenModel:
    if embedder.shape[0] not in (1, 3):
        raise ConfigError(f"a recognizer needs a model for gray or color images, got {embedder.shape[0]} channels")
    return OpenModel(embedder, embedder.shape, embedder.batch, source, fingerprint)


def _fingerprint(model: Any, shape: tuple[int, ...], normalization: Normalization) -> str | None:
    """A hash of a module's weights and of how it reads images; None for a callable, whose insides are unknown."""
    if not isinstance(model, nn.Module):
        return None
    digest = hashlib.sha256(f"{type(model).__qualname__} {shape} {normalization} {FLIP}".encode())
    for name, values in sorted(model.state_dict().items()):
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
