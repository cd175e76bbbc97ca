"""What stands before the first layer of an image model: checks, gray to color, small to large."""

from __future__ import annotations

from torch import Tensor, nn

from fedra.errors import ConfigError


class RepeatGray(nn.Module):
    """One gray channel becomes three equal ones, as FedSoL's code does for MNIST and Tissue."""

    def forward(self, images: Tensor) -> Tensor:
        return images.expand(-1, 3, -1, -1)


def front(
    model: str, shape: tuple[int, ...], *, smallest: int, repeat_gray: bool = False, enlarge_to: int = 0
) -> tuple[list[nn.Module], tuple[int, int, int]]:
    """The layers that prepare an image of `shape`, and the (C, H, W) they give.

    `repeat_gray` makes one channel three; sides below `enlarge_to` are enlarged to it (nearest pixel).
    """
    channels, height, width = _image_shape(model, shape, smallest)
    layers: list[nn.Module] = []
    if repeat_gray:
        if channels != 1:
            raise ConfigError(
                f"the model '{model}' got repeat_gray for images of {channels} channels: "
                "it needs one channel, so leave it out"
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
            f"the model '{model}' reads images (channels, height, width), not examples of shape {shape}: "
            "choose 'mlp' or 'logistic' for those"
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ConfigError(
            f"the model '{model}' needs images of {smallest}x{smallest} or more, not {height}x{width}: "
            "enlarge the images or choose 'mlp' or 'logistic'"
        )
    return channels, height, width


def initialize_convolutions(module: nn.Module) -> None:
    """Weights from N(0, variance 2 / (k * k * channels out)), biases 0 (He et al. 2015, fan-out form)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
