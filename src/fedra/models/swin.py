"""Swin Transformer (Liu et al. 2021, arXiv:2103.14030): attention within windows that shift from layer to layer."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fedra.errors import ConfigError
from fedra.models.recognition_model import RecognitionModel
from fedra.models.stem import input_layers
from fedra.models.zoo import MODELS

Size = Annotated[int, Field(gt=0)]
Sizes = Annotated[tuple[Size, ...], Field(min_length=1, max_length=100)]
Depths = Annotated[tuple[Annotated[int, Field(gt=0, le=1000)], ...], Field(min_length=1, max_length=100)]
SPREAD = 0.02
"""Initial standard deviation of weights and of position biases."""


class ChannelsLast(nn.Module):
    """Turn maps (B, C, H, W) into tokens (B, H, W, C)."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.permute(0, 2, 3, 1)


class WindowAttention(nn.Module):
    """Attention among the tokens of each window, with a learned bias for every offset between two of them.

    A shift moves the windows by half their side. Tokens that the shift brings together from opposite borders of the
    image do not attend to each other.
    """

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.offset_bias = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.offset_bias, std=SPREAD)

    def forward(self, tokens: Tensor) -> Tensor:
        _, side, _, width = map(int, tokens.shape)  # constants: an exported graph varies in the batch alone
        count, inside = (side // self.window) ** 2, self.window**2
        moved = tokens.roll((-self.shift, -self.shift), (1, 2)) if self.shift else tokens
        windows = self._cut(moved)
        split = self.query_key_value(windows).reshape(-1, count, inside, 3, self.heads, width // self.heads)
        query, key, value = split.permute(3, 0, 1, 4, 2, 5).unbind(0)
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        # Not stored: a federation averages buffers, and these are constants.
        scores = scores + self.offset_bias[window_offsets(self.window, tokens.device)].permute(2, 0, 1)
        if self.shift:
            regions = shifted_regions(side, self.window, self.shift, tokens.device)
            apart = regions[:, None, :] != regions[:, :, None]
            scores = scores.masked_fill(apart[None, :, None], -100.0)
        mixed = self.out((scores.softmax(dim=-1) @ value).transpose(2, 3).reshape(-1, count, inside, width))
        joined = self._join(mixed, side)
        return joined.roll((self.shift, self.shift), (1, 2)) if self.shift else joined

    def _cut(self, tokens: Tensor) -> Tensor:
        """Return (B, windows, tokens of a window, width)."""
        _, side, _, width = map(int, tokens.shape)
        rows = side // self.window
        grid = tokens.reshape(-1, rows, self.window, rows, self.window, width)
        return grid.transpose(2, 3).reshape(-1, rows * rows, self.window**2, width)

    def _join(self, windows: Tensor, side: int) -> Tensor:
        """Undo `_cut`."""
        rows, width = side // self.window, int(windows.shape[-1])
        grid = windows.reshape(-1, rows, rows, self.window, self.window, width)
        return grid.transpose(2, 3).reshape(-1, side, side, width)


def window_offsets(window: int, device: torch.device) -> Tensor:
    """Return (n, n), n tokens of a window: the index of the offset between two tokens."""
    along = torch.arange(window, device=device)
    place = torch.stack([along.repeat_interleave(window), along.repeat(window)], dim=1)
    apart = place[:, None] - place[None] + window - 1
    return apart[..., 0] * (2 * window - 1) + apart[..., 1]


def shifted_regions(side: int, window: int, shift: int, device: torch.device) -> Tensor:
    """Return (windows, n): which part of the image a token of a shifted window comes from."""
    place = torch.arange(side, device=device)
    band = (place >= side - window).long() + (place >= side - shift).long()
    region = 3 * band[:, None] + band
    rows = side // window
    return region.reshape(rows, window, rows, window).transpose(1, 2).reshape(rows * rows, window * window)


class SwinLayer(nn.Module):
    """Compute x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), WindowAttention(width, heads, window, shift))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        attended: Tensor = tokens + self.attention(tokens)
        mixed: Tensor = attended + self.mlp(attended)
        return mixed


class MergePatches(nn.Module):
    """Halve the sides: the four tokens of a square become one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        corners = [tokens[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        merged: Tensor = self.reduction(self.norm(torch.cat(corners, dim=-1)))
        return merged


class MeanToken(nn.Module):
    """Return the mean of all tokens: the feature (B, width)."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.mean(dim=(1, 2))


def _register(
    name: str, about: str, patch: int, window: int, width: int, depths: tuple[int, ...], heads: tuple[int, ...]
) -> None:
    default_patch, default_window, default_width, default_depths, default_heads = patch, window, width, depths, heads

    def swin(
        shape: tuple[int, ...],
        classes: int,
        *,
        patch: Size = default_patch,
        window: Size = default_window,
        width: Size = default_width,
        depths: Depths = default_depths,
        heads: Sizes = default_heads,
    ) -> RecognitionModel:
        layers, (channels, height, image_width) = input_layers(name, shape, smallest=patch)
        sides = _stage_sides(name, (height, image_width), patch, window, len(depths))
        _check_heads(name, width, depths, heads)
        layers += [nn.Conv2d(channels, width, patch, patch), ChannelsLast(), nn.LayerNorm(width)]
        for stage, (side, depth, count) in enumerate(zip(sides, depths, heads, strict=True)):
            wide, across = width * 2**stage, min(window, side)
            layers += [MergePatches(wide // 2)] if stage else []
            shift = across // 2 if side > across else 0
            layers += [SwinLayer(wide, count, across, shift if number % 2 else 0) for number in range(depth)]
        final = width * 2 ** (len(depths) - 1)
        body = nn.Sequential(*layers, nn.LayerNorm(final), MeanToken())
        return RecognitionModel(_initialize(body), nn.Linear(final, classes))

    swin.__doc__ = f"""{about}

    Every stage after the first halves the sides and doubles the width. The sides of each stage must be multiples of the
    window, or not larger than it: 112x112 needs patches of 2, 4 or 8 with windows of 7.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        patch: Side of a patch, in pixels.
        window: Side of a window, in tokens.
        width: Length of a token in the first stage.
        depths: Number of layers of each stage.
        heads: Number of attention heads of each stage.

    Returns:
        The model, with a `body` and a `head`.
    """
    MODELS.add(name)(swin)


def _stage_sides(name: str, image: tuple[int, int], patch: int, window: int, stages: int) -> list[int]:
    """Return the side of every stage in tokens, or raise an error for an image that the windows do not tile."""
    height, width = image
    sides = [height // patch // 2**stage for stage in range(stages)]
    tiles = all(side > 0 and (side <= window or side % window == 0) for side in sides)
    if height != width or height % (patch * 2 ** (stages - 1)) or not tiles:
        raise ConfigError(
            f"images must be square, and tiled by windows of {window} tokens of {patch} pixels in each of {stages} "
            f"stages, for the model '{name}', got {height}x{width}: change the images, patch, window or depths"
        )
    return sides


def _check_heads(name: str, width: int, depths: tuple[int, ...], heads: tuple[int, ...]) -> None:
    if len(heads) != len(depths) or any(width * 2**stage % count for stage, count in enumerate(heads)):
        raise ConfigError(
            f"heads of the model '{name}' must have one number for each of {len(depths)} stages that divides its "
            f"width, got {list(heads)} for widths of {[width * 2**stage for stage in range(len(depths))]}"
        )


def _initialize(body: nn.Sequential) -> nn.Sequential:
    """Initialize linear layers from a truncated normal distribution, biases with 0, as the authors do."""
    for layer in body.modules():
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=SPREAD)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return body


_register(
    "swin",
    "Swin-T (Liu et al. 2021): 28,288,354 weights for a thousand classes of 224x224 images.",
    patch=4,
    window=7,
    width=96,
    depths=(2, 2, 6, 2),
    heads=(3, 6, 12, 24),
)
_register(
    "swin-mini",
    "Swin with two stages of two layers, patches of 4 and windows of 4, for CPUs and images of 32x32.",
    patch=4,
    window=4,
    width=48,
    depths=(2, 2),
    heads=(3, 6),
)
