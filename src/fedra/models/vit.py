"""SL-ViT: a vision transformer for small data sets (Lee, Lee and Song 2021), as FedSoL uses it."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedra.errors import ConfigError
from fedra.models.recognition_model import RecognitionModel
from fedra.models.stem import input_layers
from fedra.models.zoo import MODELS

HEAD_WIDTH = 64


class ShiftedPatches(nn.Module):
    """The image and its one-pixel shifts right, left, down and up, stacked on channels and cut into patches."""

    SHIFTS = ((1, -1, 0, 0), (-1, 1, 0, 0), (0, 0, 1, -1), (0, 0, -1, 1))

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch = patch

    def forward(self, images: Tensor) -> Tensor:
        stacked = torch.cat([images, *(F.pad(images, shift) for shift in self.SHIFTS)], dim=1)
        batch, channels, height, width = stacked.shape
        rows, columns = height // self.patch, width // self.patch
        grid = stacked.reshape(batch, channels, rows, self.patch, columns, self.patch)
        return grid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


class ClassToken(nn.Module):
    """Prepend a learned token to the patches and add learned positions to all."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, patches + 1, width))

    def forward(self, patches: Tensor) -> Tensor:
        # Not `len`, which would make the batch size a constant of an exported graph.
        return torch.cat([self.token.expand(patches.shape[0], -1, -1), patches], dim=1) + self.positions


class LocalityAttention(nn.Module):
    """Compute softmax(exp(t) q k^T) v with a learned log-temperature t, where no token attends to itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.log_temperature = nn.Parameter(torch.tensor(-0.5 * math.log(HEAD_WIDTH)))
        self.query_key_value = nn.Linear(width, 3 * heads * HEAD_WIDTH, bias=False)
        self.out = nn.Linear(heads * HEAD_WIDTH, width)

    def forward(self, tokens: Tensor) -> Tensor:
        split = self.query_key_value(tokens).unflatten(2, (3, self.heads, HEAD_WIDTH))
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-2, -1) * self.log_temperature.exp()
        position = torch.arange(scores.shape[-1], device=scores.device)
        itself = position[:, None] == position
        weights = scores.masked_fill(itself, -torch.finfo(scores.dtype).max).softmax(dim=-1)
        mixed: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return mixed


class TransformerLayer(nn.Module):
    """Compute x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), LocalityAttention(width, heads))
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        attended: Tensor = tokens + self.attention(tokens)
        mixed: Tensor = attended + self.mlp(attended)
        return mixed


class FirstToken(nn.Module):
    """Return the class token of (B, tokens, width): the feature (B, width)."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]


@MODELS.add("sl-vit")
def sl_vit(
    shape: tuple[int, ...],
    classes: int,
    *,
    resize: bool = True,
    repeat_gray: bool = False,
    width: Annotated[int, Field(gt=0)] = 192,
    depth: Annotated[int, Field(gt=0, le=1000)] = 9,
    heads: Annotated[int, Field(gt=0)] = 12,
) -> RecognitionModel:
    """SL-ViT (Lee, Lee and Song 2021): 6,176,275 weights for ten classes of 32x32 color images.

    The patch side is min(side // 4, 16). The head is LayerNorm and Linear.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        resize: Enlarge sides below 32 to 32, as FedSoL's paper says; False keeps them, as its code does.
        repeat_gray: Repeat one-channel images to three channels in the forward pass.
        width: Length of a token.
        depth: Number of transformer layers.
        heads: Number of attention heads.

    Returns:
        The model, with a `body` and a `head`.
    """
    layers, (channels, height, image_width) = input_layers(
        "sl-vit", shape, smallest=8, repeat_gray=repeat_gray, enlarge_to=32 if resize else 0
    )
    patch = min(height // 4, 16)
    if height != image_width or height % patch:
        raise ConfigError(
            f"images must be square with a side that is a multiple of {patch} (the patch) for the model 'sl-vit', got "
            f"{height}x{image_width}: use images such as 32x32 or 64x64"
        )
    pixels = 5 * channels * patch * patch
    body = nn.Sequential(
        *layers,
        ShiftedPatches(patch),
        nn.LayerNorm(pixels),
        nn.Linear(pixels, width),
        ClassToken((height // patch) ** 2, width),
        *(TransformerLayer(width, heads) for _ in range(depth)),
        FirstToken(),
    )
    return RecognitionModel(body, nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes)))
