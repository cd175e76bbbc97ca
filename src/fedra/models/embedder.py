"""From images to embeddings: a trained body with its pre-processing, in batches, on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedra.core.model import Model
from fedra.errors import ConfigError, nearest

Fit = Literal["refuse", "crop", "resize"]
Flip = Literal["none", "sum", "concatenate"]


class Embedder:
    """`embedder(images)`: uint8 images (N, C, H, W) or (N, H, W, C) to features (N, d), one row per image.

    Features are not scaled to unit length: their norm tells of the image's quality.

    Args:
        module: A model with a `body`.
        prepare: Makes floats of uint8 images as in training, such as `Transform(mean, std).prepare`.
        shape: What the body reads, (C, H, W).
        fit: What happens to images of another size: "refuse", "crop" about their center, or "resize".
        flip: Adds the mirrored image: "sum" adds the features, as InsightFace does, "concatenate" puts them side by
            side.
        batch: Images at once.
        device: Where the body runs.

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
        module: nn.Module,
        prepare: Callable[[Tensor], Tensor],
        shape: tuple[int, ...],
        *,
        fit: Fit = "refuse",
        flip: Flip = "none",
        batch: int = 64,
        device: torch.device | str = "cpu",
    ) -> None:
        for option, given, known in (("fit", fit, get_args(Fit)), ("flip", flip, get_args(Flip))):
            if given not in known:
                raise ConfigError(f"the embedder cannot use {option} = {given!r}: {nearest(str(given), known)}")
        self._model = Model(module, device)
        self._weights = self._model.weights()
        self._prepare = prepare
        if len(shape) != 3:
            raise ConfigError(f"an embedder reads images, and this model reads examples of shape {shape}")
        if not self._model.per_example:
            raise ConfigError(
                "the model normalises by the batch's own statistics, so that an image's embedding would depend on its "
                "neighbours: train it with norm = 'running' or 'group'"
            )
        if batch < 1:
            raise ConfigError(f"an embedder cannot take {batch} images at once: give a batch of 1 or more")
        self.shape = shape
        self.fit: Fit = fit
        self.flip: Flip = flip
        self.batch = batch

    @property
    def device(self) -> torch.device:
        """Where the body runs; embeddings are handed back on the CPU."""
        return self._model.device

    def __call__(self, images: Tensor | np.ndarray, done: Callable[[int], None] | None = None) -> Tensor:
        """The features of all images, float32 on the CPU; `done` is told how many more are done after each batch."""
        found = []
        for part in self._batches(torch.as_tensor(images)):
            found.append(self._features(part))
            if done is not None:
                done(len(part))
        return torch.cat(found).float().cpu()

    def _batches(self, images: Tensor) -> Iterator[Tensor]:
        ready = self._channels_first(images)
        if not len(ready):
            raise ConfigError("there are no images to embed: give at least one")
        yield from (ready[start : start + self.batch] for start in range(0, len(ready), self.batch))

    @torch.no_grad()
    def _features(self, images: Tensor) -> Tensor:
        prepared = self._prepare(self._fitted(images.to(self.device, non_blocking=True)))
        straight = self._forward(prepared)
        if self.flip == "none":
            return straight
        mirrored = self._forward(prepared.flip(-1))
        return straight + mirrored if self.flip == "sum" else torch.cat([straight, mirrored], dim=1)

    def _forward(self, prepared: Tensor) -> Tensor:
        return self._model.features(self._weights, self._model.ready(prepared), train=False)

    def _channels_first(self, images: Tensor) -> Tensor:
        channels = self.shape[0]
        if images.dtype != torch.uint8 or images.dim() != 4:
            raise ConfigError(
                f"the embedder was given {images.dtype} of shape {tuple(images.shape)}: give uint8 images "
                "(N, C, H, W) or (N, H, W, C)"
            )
        if images.shape[1] == channels:
            return images
        if images.shape[3] == channels:
            return images.permute(0, 3, 1, 2)
        raise ConfigError(
            f"the embedder was given images of shape {tuple(images.shape[1:])}: the model reads {channels} channels"
        )

    def _fitted(self, images: Tensor) -> Tensor:
        size, wanted = tuple(images.shape[2:]), tuple(self.shape[1:])
        if size == wanted:
            return images
        if self.fit == "resize":
            floats = F.interpolate(images.float(), wanted, mode="bilinear", antialias=True, align_corners=False)
            return floats.round_().clamp_(0, 255).to(torch.uint8)
        top, left = ((side - target) // 2 for side, target in zip(size, wanted, strict=True))
        if self.fit == "refuse" or min(top, left) < 0:
            raise ConfigError(
                f"the model reads images of {wanted[0]}x{wanted[1]}, not {size[0]}x{size[1]}: align them to that size, "
                "or let the embedder fit them (fit = 'resize', or 'crop' for larger ones)"
            )
        return images[:, :, top : top + wanted[0], left : left + wanted[1]]
