"""The unit of mobile face networks: a convolution without bias, its normalization and its activation."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from fedra.models.normalization import Normalizer

Activation = Literal["prelu", "relu", "none"]


def convolution(
    channels_in: int,
    channels_out: int,
    kernel: int | tuple[int, int],
    normalizer: Normalizer,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: Activation = "prelu",
) -> nn.Sequential:
    """Return `conv`, `norm` and, unless it is "none", `activation`.

    A square kernel is padded, so stride 1 keeps the size and stride 2 halves it, rounded up; a kernel (H, W) is not
    padded, so it reduces a map of its own size to one value.
    """
    padding = kernel // 2 if isinstance(kernel, int) else 0
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv"] = nn.Conv2d(channels_in, channels_out, kernel, stride, padding, groups=groups, bias=False)
    layers["norm"] = normalizer.maps(channels_out)
    if activation == "prelu":
        layers["activation"] = nn.PReLU(channels_out)  # one weight per channel (He et al. 2015)
    elif activation == "relu":
        layers["activation"] = nn.ReLU()
    return nn.Sequential(layers)


def scale_channels(channels: float, width: float = 1.0) -> int:
    """Return `channels` times `width`, rounded to a multiple of 4 of at least 4 and at least 90 % of the product."""
    exact = channels * width
    rounded = max(4, int(exact + 2) // 4 * 4)
    return rounded if rounded >= 0.9 * exact else rounded + 4


def size_after_halving(height: int, width: int, times: int) -> tuple[int, int]:
    """Return the size of a map after that many convolutions of stride 2."""
    return -(-height // 2**times), -(-width // 2**times)
