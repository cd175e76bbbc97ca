"""Checks and layers before the first layer of an image model: gray to color, small to large."""

from __future__ import annotations

from torch import Tensor, nn

from fedra.errors import ConfigError


class RepeatGray(nn.Module):
    """Repeat one gray channel to three, as FedSoL's code does for MNIST and Tissue."""

    def forward(self, images: Tensor) -> Tensor:
        return images.expand(-1, 3, -1, -1)


def input_layers(
    model: str, shape: tuple[int, ...], *, smallest: int, repeat_gray: bool = False, enlarge_to: int = 0
) -> tuple[list[nn.Module], tuple[int, int, int]]:
    """Return the layers that prepare an image of `shape`, and the shape (C, H, W) of their output.

    `repeat_gray` repeats one channel to three; sides below `enlarge_to` are enlarged to it (nearest pixel).
    """
    channels, height, width = _image_shape(model, shape, smallest)
    layers: list[nn.Module] = []
    if repeat_gray:
        if channels != 1:
            raise ConfigError(
                f"images must have 1 channel with repeat_gray of the model '{model}', got {channels}: remove "
                "repeat_gray"
            )
        layers.append(RepeatGray())
        channels = 3
    size = (max(height, enlarge_to), max(width, enlarge_to))
    if size != (height, width):
        layers.append(nn.Upsample(size, mode="nearest"))
    return layers, (channels, *size)


def _image_shape(model: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ConfigError(
            f"examples must have shape (channels, height, width) for the model '{model}', got {shape}: use 'mlp' or "
            "'logistic'"
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ConfigError(
            f"images must be at least {smallest}x{smallest} for the model '{model}', got {height}x{width}: enlarge "
            "them, or use 'mlp' or 'logistic'"
        )
    return channels, height, width


def initialize_convolutions(module: nn.Module) -> None:
    """Initialize weights from N(0, 2 / (k * k * channels out)) and biases with 0 (He et al. 2015, fan-out form)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
