"""The unit that mobile face networks repeat: a convolution without bias, its normalization, its activation."""

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
    """`conv`, `norm` and, unless it is linear, `activation`.

    A square kernel is padded so that stride 1 keeps the side and stride 2 halves it, rounded up; a kernel (H, W) is
    not padded, so that it turns a map of its own size into one value.
    """
    padding = kernel // 2 if isinstance(kernel, int) else 0
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv"] = nn.Conv2d(channels_in, channels_out, kernel, stride, padding, groups=groups, bias=False)
    layers["norm"] = normalizer.maps(channels_out)
    if activation == "prelu":
        layers["activation"] = nn.PReLU(channels_out)  # one slope per channel (He et al. 2015)
    elif activation == "relu":
        layers["activation"] = nn.ReLU()
    return nn.Sequential(layers)


def scaled(channels: float, width: float = 1.0) -> int:
    """`channels` times `width`, rounded to a multiple of 4 that loses no more than a tenth, at least 4."""
    wanted = channels * width
    rounded = max(4, int(wanted + 2) // 4 * 4)
    return rounded if rounded >= 0.9 * wanted else rounded + 4


def halved(height: int, width: int, times: int) -> tuple[int, int]:
    """The sides of a map after that many convolutions of stride 2."""
    return -(-height // 2**times), -(-width // 2**times)
