"""GhostFaceNet (Alansari et al. 2023): a cheap depth-wise convolution of half of each map computes the other half."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from fedra.models.convolution import Activation, convolution, scale_channels, size_after_halving
from fedra.models.mobilefacenet import global_depthwise, recognizer
from fedra.models.normalization import Norm, Normalizer
from fedra.models.recognition_model import RecognitionModel
from fedra.models.stem import input_layers
from fedra.models.zoo import MODELS
from fedra.registry import Positive

Size = Annotated[int, Field(gt=0)]


class Row(NamedTuple):
    """One ghost bottleneck: kernel, hidden and outer channels, stride, and whether it has squeeze and excitation."""

    kernel: int
    hidden: int
    channels: int
    stride: int = 1
    excitation: bool = False


ROWS = (
    Row(3, 16, 16),
    Row(3, 48, 24, 2),
    Row(3, 72, 24),
    Row(5, 72, 40, 2, excitation=True),
    Row(5, 120, 40, excitation=True),
    Row(3, 240, 80, 2),
    Row(3, 200, 80),
    Row(3, 184, 80),
    Row(3, 184, 80),
    Row(3, 480, 112, excitation=True),
    Row(3, 672, 112, excitation=True),
    Row(5, 672, 160, 2, excitation=True),
    Row(5, 960, 160),
    Row(5, 960, 160, excitation=True),
    Row(5, 960, 160),
    Row(5, 512, 160, excitation=True),
)


class Ghost(nn.Module):
    """Compute cat(p, cheap(p)): p is a 1x1 convolution to half of the channels, `cheap` a depth-wise 3x3 one."""

    def __init__(self, channels_in: int, channels_out: int, normalizer: Normalizer, activation: Activation) -> None:
        super().__init__()
        half = channels_out // 2
        self.primary = convolution(channels_in, half, 1, normalizer, activation=activation)
        self.cheap = convolution(half, half, 3, normalizer, groups=half, activation=activation)

    def forward(self, maps: Tensor) -> Tensor:
        primary = self.primary(maps)
        return torch.cat([primary, self.cheap(primary)], dim=1)


class ChannelWeights(nn.Module):
    """Squeeze and excitation: each channel times a number in [0, 1] computed from the means of all channels."""

    def __init__(self, channels: int, reduced: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, reduced, 1),
            nn.ReLU(),
            nn.Conv2d(reduced, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, maps: Tensor) -> Tensor:
        weighed: Tensor = maps * self.weigh(maps)
        return weighed


class GhostBottleneck(nn.Module):
    """Compute shortcut(x) + ghost(weigh(halve(ghost(x)))), without a final activation."""

    def __init__(self, channels_in: int, row: Row, normalizer: Normalizer, activation: Activation) -> None:
        super().__init__()
        kernel, hidden, channels, stride, excitation = row
        self.residual = nn.Sequential(OrderedDict(expand=Ghost(channels_in, hidden, normalizer, activation)))
        if stride == 2:
            halve = convolution(hidden, hidden, kernel, normalizer, stride=2, groups=hidden, activation="none")
            self.residual.add_module("halve", halve)
        if excitation:
            self.residual.add_module("weigh", ChannelWeights(hidden, scale_channels(hidden / 4)))
        self.residual.add_module("project", Ghost(hidden, channels, normalizer, "none"))
        self.shortcut: nn.Module = nn.Identity()
        if stride == 2 or channels_in != channels:
            self.shortcut = nn.Sequential(
                convolution(
                    channels_in, channels_in, kernel, normalizer, stride=stride, groups=channels_in, activation="none"
                ),
                convolution(channels_in, channels, 1, normalizer, activation="none"),
            )

    def forward(self, maps: Tensor) -> Tensor:
        summed: Tensor = self.shortcut(maps) + self.residual(maps)
        return summed


@MODELS.add("ghostfacenet")
def ghostfacenet(
    shape: tuple[int, ...],
    classes: int,
    *,
    embedding: Size = 512,
    width: Positive = 1.3,
    stride: Literal[1, 2] = 1,
    activation: Literal["prelu", "relu"] = "prelu",
    norm: Norm = "running",
    groups: Size = 2,
) -> RecognitionModel:
    """GhostFaceNetV1 (Alansari et al. 2023); 4,049,672 weights before the head at 112x112 with activation = "relu".

    The default is the paper's V1-1.3-1. Strided maps are padded equally on both sides, where the authors' Keras code
    pads one.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        embedding: Length of the embedding, which is the feature.
        width: Factor of all channel counts.
        stride: Stride of the first convolution; 2 takes a quarter of the time.
        activation: "prelu" (one more weight per channel) or "relu".
        norm: Normalization layers: "running" is BatchNorm with running statistics, "batch" uses batch statistics in
            evaluation too, "fixed" keeps the initial statistics of a pre-trained network, "group" is GroupNorm.
        groups: Number of groups of "group".

    Returns:
        The model, with a `body` and a `head`.
    """
    _, (channels, height, image_width) = input_layers("ghostfacenet", shape, smallest=16)
    normalizer = Normalizer(norm, groups)
    outer = scale_channels(16, width)
    body: OrderedDict[str, nn.Module] = OrderedDict(
        stem=convolution(channels, outer, 3, normalizer, stride=stride, activation=activation), blocks=nn.Sequential()
    )
    for row in ROWS:
        wide = row._replace(hidden=scale_channels(row.hidden, width), channels=scale_channels(row.channels, width))
        body["blocks"].append(GhostBottleneck(outer, wide, normalizer, activation))  # type: ignore[operator]
        outer = wide.channels
    size = size_after_halving(height, image_width, 4 + (stride == 2))
    body |= global_depthwise(outer, scale_channels(512, width), size, embedding, normalizer, activation)
    return recognizer(body, embedding, classes)
