"""From images to embeddings: a trained body with its pre-processing, in batches, on any device."""

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
from fedra.models.recognition_model import keeps_contract

Fit = Literal["refuse", "crop", "resize"]
Flip = Literal["none", "sum", "concatenate"]


def read_flip(word: str) -> Flip:
    """A way to add mirror images, by its name."""
    known: tuple[Flip, ...] = get_args(Flip)
    if word not in known:
        raise ConfigError(f"flip cannot be '{word}': {nearest(word, known)}")
    return next(flip for flip in known if flip == word)


class Embedder:
    """`embedder(images)`: uint8 images (N, C, H, W) or (N, H, W, C) to features (N, d), one row per image.

    Features are not scaled to unit length: their norm tells of the image's quality.

    Args:
        module: A model with a `body`, any other module from images to embeddings, or any such function.
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
                raise ConfigError(f"the embedder cannot use {option} = {given!r}: {nearest(str(given), known)}")
        self._prepare = prepare
        if len(shape) != 3:
            raise ConfigError(f"an embedder reads images, and this model reads examples of shape {shape}")
        self._body, self.device = _body_of(module, device)
        if batch < 1:
            raise ConfigError(f"an embedder cannot take {batch} images at once: give a batch of 1 or more")
        self.shape = shape
        self.fit: Fit = fit
        self.flip: Flip = flip
        self.batch = batch

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
        return self._mirrored(self._prepare(self._fitted(images.to(self.device, non_blocking=True))))

    def _mirrored(self, prepared: Tensor) -> Tensor:
        straight = self._forward(prepared)
        if self.flip == "none":
            return straight
        mirrored = self._forward(prepared.flip(-1))
        return straight + mirrored if self.flip == "sum" else torch.cat([straight, mirrored], dim=1)

    @torch.no_grad()
    def of_prepared(self, inputs: Tensor, done: Callable[[int], None] | None = None) -> Tensor:
        """The features of inputs that are what the body reads already, float32 on the CPU."""
        found = []
        for start in range(0, len(inputs), self.batch):
            found.append(self._mirrored(inputs[start : start + self.batch].to(self.device)).float().cpu())
            if done is not None:
                done(len(found[-1]))
        return torch.cat(found)

    def _forward(self, prepared: Tensor) -> Tensor:
        features = self._body(prepared)
        if not isinstance(features, Tensor) or features.dim() < 2 or len(features) != len(prepared):
            given = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ConfigError(
                f"the model must return one embedding for each of {len(prepared)} images, a tensor (N, d), got {given}"
            )
        return features.flatten(1)

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


def _body_of(
    module: nn.Module | Callable[[Tensor], Tensor], device: torch.device | str | None
) -> tuple[Callable[[Tensor], Tensor], torch.device]:
    """From prepared inputs to features, and where: the `body` of a model that has one, else the module itself.

    A module is copied, so neither its mode nor its place changes; a function is called as it is.
    """
    if not isinstance(module, nn.Module):
        if not callable(module):
            raise ConfigError(f"a model must be a module or a function from images to embeddings, got {module!r}")
        return module, torch.device(device or "cpu")
    first = next(module.parameters(), None)
    where = torch.device(device) if device is not None else torch.device("cpu") if first is None else first.device
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) and not m.track_running_stats for m in module.modules()):
        raise ConfigError(
            "the model normalizes by the batch's own statistics, so that an image's embedding would depend on its "
            "neighbors: train it with norm = 'running' or 'group'"
        )
    if keeps_contract(module):
        model = Model(module, where)
        weights = model.weights()
        return lambda inputs: model.features(weights, model.ready(inputs), train=False), where
    plain = copy.deepcopy(module).to(where).eval()
    dtype = torch.float32 if first is None else first.dtype
    return lambda inputs: plain(inputs.to(dtype) if inputs.is_floating_point() else inputs), where
