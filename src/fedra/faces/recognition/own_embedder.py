"""A user's own network as an embedder: any module or callable from images to embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedra.core.device import build_device
from fedra.data import Transform
from fedra.errors import ConfigError

BATCH = 64


class OwnEmbedder:
    """`embedder(images)`: `uint8` images (N, H, W, 3) to embeddings (N, d) by a module or callable of any kind.

    The model receives float32 (N, 3, H, W), normalized by `mean` and `std` on the 0..1 scale, on the device of its
    parameters. As with fedra's own models, an image and its mirror image are embedded and added. A module is put into
    evaluation mode for the call.
    """

    def __init__(
        self,
        model: Callable[[Tensor], Any],
        size: tuple[int, int],
        *,
        mean: Sequence[float],
        std: Sequence[float],
        device: str = "cpu",
        batch: int = BATCH,
    ) -> None:
        self._model, self.shape, self.batch = model, (3, *size), batch
        self._transform = Transform(tuple(mean), tuple(std))
        self._read_as = [list(size), list(mean), list(std)]
        weights = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
        self.device = weights[0].device if weights else build_device(device)

    def fingerprint(self) -> str | None:
        """A hash of a module's weights and of how it reads images; None for a callable, whose insides are unknown."""
        if not isinstance(self._model, nn.Module):
            return None
        digest = hashlib.sha256(f"{type(self._model).__qualname__} {self._read_as}".encode())
        for name, values in sorted(self._model.state_dict().items()):
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
            digest.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:32]

    def __call__(self, images: np.ndarray | Tensor, done: Callable[[int], None] | None = None) -> Tensor:
        """The embeddings of all images, float32 on the CPU."""
        given = torch.as_tensor(images)
        pixels = given.permute(0, 3, 1, 2) if given.shape[-1] == 3 else given
        found = []
        for start in range(0, len(pixels), self.batch):
            part = pixels[start : start + self.batch]
            found.append(self._embed(self._middle(part)))
            if done is not None:
                done(len(part))
        return torch.cat(found)

    def _middle(self, images: Tensor) -> Tensor:
        """The middle of crops that are larger than the model reads."""
        top, left = ((side - wanted) // 2 for side, wanted in zip(images.shape[2:], self.shape[1:], strict=True))
        return images[:, :, top : top + self.shape[1], left : left + self.shape[2]]

    @torch.no_grad()
    def _embed(self, images: Tensor) -> Tensor:
        ready = self._transform.prepare(images.to(self.device))
        modules = list(self._model.modules()) if isinstance(self._model, nn.Module) else []
        training = [module for module in modules if module.training]
        for module in training:
            module.training = False
        try:
            return self._checked(self._model(ready), len(images)) + self._checked(
                self._model(ready.flip(-1)), len(images)
            )
        finally:
            for module in training:
                module.training = True

    def _checked(self, found: object, count: int) -> Tensor:
        values = torch.as_tensor(found) if isinstance(found, (Tensor, np.ndarray)) else None
        if values is None or values.dim() != 2 or len(values) != count or not values.is_floating_point():
            got = type(found).__name__ if values is None else f"{values.dtype} of shape {tuple(values.shape)}"
            raise ConfigError(f"the model must return embeddings (N, d) for N images, got {got} for {count} images")
        return values.detach().float().cpu()
