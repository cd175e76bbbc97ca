"""Embedding images: a trained body with its preprocessing, in batches, on any device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedra.core.model import Model
from fedra.errors import ConfigError, nearest
from fedra.models.recognition_model import has_body_and_head

Fit = Literal["refuse", "crop", "resize"]
Flip = Literal["none", "sum", "concatenate"]


def parse_flip(word: str) -> Flip:
    """Return the flip mode with this name, or raise an error."""
    known: tuple[Flip, ...] = get_args(Flip)
    if word not in known:
        raise ConfigError(f"flip must be a known mode, got '{word}': {nearest(word, known)}")
    return next(flip for flip in known if flip == word)


class Embedder:
    """Computes embeddings: uint8 images (N, C, H, W) or (N, H, W, C) to features (N, d).

    Features are not normalized: their norm is a measure of image quality.

    Args:
        module: A model with a `body`, any other module from images to embeddings, or a function that does the same.
        prepare: Converts uint8 images to the floats that the model was trained on, such as `Transform(mean,
            std).prepare`.
        shape: Shape (C, H, W) of the model's input.
        fit: What to do with images of another size: "refuse" raises an error, "crop" takes the center, "resize" scales.
        flip: How to add the mirrored image: "none", "sum" adds both features, as InsightFace does, "concatenate" puts
            them side by side.
        batch: Number of images per batch.
        device: Device to run on; None (the default) is the module's own.

    Example:
        >>> import torch
        >>> from fedra.data import Transform
        >>> from fedra.models import build
        >>> embedder = Embedder(build("fedavg-cnn", (1, 28, 28), 10), Transform().prepare, (1, 28, 28))
        >>> embedder(torch.zeros(3, 1, 28, 28, dtype=torch.uint8)).shape
        torch.Size([3, 512])
    """

    def __init__(
        self,
        module: nn.Module | Callable[[Tensor], Tensor],
        prepare: Callable[[Tensor], Tensor],
        shape: tuple[int, ...],
        *,
        fit: Fit = "refuse",
        flip: Flip = "none",
        batch: int = 64,
        device: torch.device | str | None = None,
    ) -> None:
        for option, given, known in (("fit", fit, get_args(Fit)), ("flip", flip, get_args(Flip))):
            if given not in known:
                raise ConfigError(f"{option} must be a known mode, got {given!r}: {nearest(str(given), known)}")
        self._prepare = prepare
        if len(shape) != 3:
            raise ConfigError(f"the model of an embedder must read images (C, H, W), got examples of shape {shape}")
        self._body, self.device = _resolve_body(module, device)
        if batch < 1:
            raise ConfigError(f"batch of an embedder must be at least 1, got {batch}")
        self.shape = shape
        self.fit: Fit = fit
        self.flip: Flip = flip
        self.batch = batch

    def __call__(self, images: Tensor | np.ndarray, done: Callable[[int], None] | None = None) -> Tensor:
        """Return the features of all images.

        Args:
            images: uint8 images (N, C, H, W) or (N, H, W, C).
            done: Called after each batch with the number of its images; None (the default) reports nothing.

        Returns:
            Features (N, d), float32 on the CPU.
        """
        found = []
        for part in self._batches(torch.as_tensor(images)):
            found.append(self._embed(part))
            if done is not None:
                done(len(part))
        return torch.cat(found).float().cpu()

    def _batches(self, images: Tensor) -> Iterator[Tensor]:
        ready = self._channels_first(images)
        if not len(ready):
            raise ConfigError("images must have at least one image, got none")
        yield from (ready[start : start + self.batch] for start in range(0, len(ready), self.batch))

    @torch.no_grad()
    def _embed(self, images: Tensor) -> Tensor:
        return self._embed_flipped(self._prepare(self._fit_size(images.to(self.device, non_blocking=True))))

    def _embed_flipped(self, prepared: Tensor) -> Tensor:
        straight = self._forward(prepared)
        if self.flip == "none":
            return straight
        mirrored = self._forward(prepared.flip(-1))
        return straight + mirrored if self.flip == "sum" else torch.cat([straight, mirrored], dim=1)

    @torch.no_grad()
    def embed_prepared(self, inputs: Tensor, done: Callable[[int], None] | None = None) -> Tensor:
        """Return the features of inputs that need no preparation.

        Args:
            inputs: What the body reads (N, C, H, W).
            done: Called after each batch with the number of its images; None (the default) reports nothing.

        Returns:
            Features (N, d), float32 on the CPU.
        """
        found = []
        for start in range(0, len(inputs), self.batch):
            found.append(self._embed_flipped(inputs[start : start + self.batch].to(self.device)).float().cpu())
            if done is not None:
                done(len(found[-1]))
        return torch.cat(found)

    def _forward(self, prepared: Tensor) -> Tensor:
        features = self._body(prepared)
        if not isinstance(features, Tensor) or features.dim() < 2 or len(features) != len(prepared):
            given = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ConfigError(
                f"the model must return a tensor (N, d) with one embedding per image, N = {len(prepared)}, got {given}"
            )
        return features.flatten(1)

    def _channels_first(self, images: Tensor) -> Tensor:
        channels = self.shape[0]
        if images.dtype != torch.uint8 or images.dim() != 4:
            raise ConfigError(
                f"images must be uint8 of shape (N, C, H, W) or (N, H, W, C), got {images.dtype} of shape "
                f"{tuple(images.shape)}"
            )
        if images.shape[1] == channels:
            return images
        if images.shape[3] == channels:
            return images.permute(0, 3, 1, 2)
        raise ConfigError(
            f"images must have {channels} channels (the model's input), got images of shape {tuple(images.shape[1:])}"
        )

    def _fit_size(self, images: Tensor) -> Tensor:
        size, wanted = tuple(images.shape[2:]), tuple(self.shape[1:])
        if size == wanted:
            return images
        if self.fit == "resize":
            floats = F.interpolate(images.float(), wanted, mode="bilinear", antialias=True, align_corners=False)
            return floats.round_().clamp_(0, 255).to(torch.uint8)
        top, left = ((side - target) // 2 for side, target in zip(size, wanted, strict=True))
        if self.fit == "refuse" or min(top, left) < 0:
            raise ConfigError(
                f"images must be {wanted[0]}x{wanted[1]} (the model's input), got {size[0]}x{size[1]}: align them to "
                "that size, or set fit = 'resize', or 'crop' for larger ones"
            )
        return images[:, :, top : top + wanted[0], left : left + wanted[1]]


def _resolve_body(
    module: nn.Module | Callable[[Tensor], Tensor], device: torch.device | str | None
) -> tuple[Callable[[Tensor], Tensor], torch.device]:
    """Return the function from prepared inputs to features, and its device: a model's `body`, else the module itself.

    A module is copied, so neither its mode nor its device changes; a function is called as it is.
    """
    if not isinstance(module, nn.Module):
        if not callable(module):
            raise ConfigError(f"a model must be a module or a function from images to embeddings, got {module!r}")
        return module, torch.device(device or "cpu")
    first = next(module.parameters(), None)
    where = torch.device(device) if device is not None else torch.device("cpu") if first is None else first.device
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) and not m.track_running_stats for m in module.modules()):
        raise ConfigError(
            "the model of an embedder must not normalize by batch statistics, which make an image's embedding depend "
            "on the other images of the batch: train it with norm = 'running' or 'group'"
        )
    if has_body_and_head(module):
        model = Model(module, where)
        weights = model.weights()
        return lambda inputs: model.features(weights, model.ready(inputs), train=False), where
    plain = copy.deepcopy(module).to(where).eval()
    dtype = torch.float32 if first is None else first.dtype
    return lambda inputs: plain(inputs.to(dtype) if inputs.is_floating_point() else inputs), where
