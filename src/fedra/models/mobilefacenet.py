"""MobileFaceNet (Chen et al. 2018): inverted bottlenecks, then a depth-wise kernel of the size of the last map."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, NamedTuple

from pydantic import Field
from torch import Tensor, nn

from fedra.models.convolution import Activation, convolution, scale_channels, size_after_halving
from fedra.models.normalization import Norm, Normalizer
from fedra.models.recognition_model import RecognitionModel
from fedra.models.stem import initialize_convolutions, input_layers
from fedra.models.zoo import MODELS
from fedra.registry import Positive

SMALLEST = 16
DEPTH_WISE_GROUPS = 64
"""Groups of the second layer in the large variants, at any width: it is depth-wise at 64 channels only."""

Size = Annotated[int, Field(gt=0)]
Depth = Annotated[int, Field(gt=0, le=1000)]


class Stage(NamedTuple):
    """A number of bottlenecks with `hidden` channels inside; the first has the stride."""

    hidden: int
    channels: int
    repeats: int
    stride: int

    def wider(self, inside: float, outside: float) -> Stage:
        """Return the stage with its hidden and its outer channels scaled."""
        return self._replace(
            hidden=scale_channels(self.hidden, inside), channels=scale_channels(self.channels, outside)
        )


def stages(second: int = 4, third: int = 6, fourth: int = 2) -> tuple[Stage, ...]:
    """Return the paper's table, with the given numbers of bottlenecks that keep the size."""
    return (
        Stage(128, 64, 1, 2),
        Stage(128, 64, second, 1),
        Stage(256, 128, 1, 2),
        Stage(256, 128, third, 1),
        Stage(512, 128, 1, 2),
        Stage(256, 128, fourth, 1),
    )


class Bottleneck(nn.Module):
    """Compute project(depthwise(expand(x))) without a final activation, plus x if the shape is the same."""

    def __init__(self, channels_in: int, hidden: int, channels_out: int, stride: int, normalizer: Normalizer) -> None:
        super().__init__()
        self.expand = convolution(channels_in, hidden, 1, normalizer)
        self.depthwise = convolution(hidden, hidden, 3, normalizer, stride=stride, groups=hidden)
        self.project = convolution(hidden, channels_out, 1, normalizer, activation="none")
        self.residual = stride == 1 and channels_in == channels_out

    def forward(self, maps: Tensor) -> Tensor:
        projected: Tensor = self.project(self.depthwise(self.expand(maps)))
        return maps + projected if self.residual else projected


def bottlenecks(channels: int, plan: tuple[Stage, ...], normalizer: Normalizer) -> nn.Sequential:
    """Return the blocks of all stages in sequence."""
    layers = nn.Sequential()
    for hidden, wider, repeats, first_stride in plan:
        for number in range(repeats):
            stride = first_stride if number == 0 else 1
            layers.append(Bottleneck(channels, hidden, wider, stride, normalizer))
            channels = wider
    return layers


def global_depthwise(
    channels: int,
    last: int,
    size: tuple[int, int],
    embedding: int,
    normalizer: Normalizer,
    activation: Activation = "prelu",
) -> OrderedDict[str, nn.Module]:
    """Return the end of the network: a weighted sum over each channel's map, then a normalized linear embedding."""
    return OrderedDict(
        widen=convolution(channels, last, 1, normalizer, activation=activation),
        global_depthwise=convolution(last, last, size, normalizer, groups=last, activation="none"),
        flatten=nn.Flatten(),
        embedding=nn.Linear(last, embedding, bias=False),
        features=normalizer.vectors(embedding),
    )


def recognizer(body: OrderedDict[str, nn.Module], embedding: int, classes: int) -> RecognitionModel:
    """Return the body with He initialization and a linear head."""
    whole = nn.Sequential(body)
    initialize_convolutions(whole)
    return RecognitionModel(whole, nn.Linear(embedding, classes, bias=False))


@MODELS.add("mobilefacenet")
def mobilefacenet(
    shape: tuple[int, ...],
    classes: int,
    *,
    embedding: Size = 128,
    width: Positive = 1.0,
    norm: Norm = "running",
    groups: Size = 2,
) -> RecognitionModel:
    """MobileFaceNet (Chen et al. 2018): 1,003,136 weights before the head at 112x112, 1,200,512 with embedding = 512.

    The last depth-wise kernel has the size of the last map, a sixteenth of the image's sides.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        embedding: Length of the embedding, which is the feature.
        width: Factor of all channel counts but the embedding's.
        norm: Normalization layers: "running" is BatchNorm with running statistics, "batch" uses batch statistics in
            evaluation too, "fixed" keeps the initial statistics of a pre-trained network, "group" is GroupNorm.
        groups: Number of groups of "group".

    Returns:
        The model, with a `body` and a `head`.
    """
    _, (channels, height, image_width) = input_layers("mobilefacenet", shape, smallest=SMALLEST)
    normalizer = Normalizer(norm, groups)
    plan = tuple(stage.wider(width, width) for stage in stages())
    first = plan[0].channels
    body: OrderedDict[str, nn.Module] = OrderedDict(
        stem=convolution(channels, first, 3, normalizer, stride=2),
        depthwise=convolution(first, first, 3, normalizer, groups=first),
        blocks=bottlenecks(first, plan, normalizer),
    )
    size = size_after_halving(height, image_width, 4)
    body |= global_depthwise(plan[-1].channels, scale_channels(512, width), size, embedding, normalizer)
    return recognizer(body, embedding, classes)


@MODELS.add("mobilefacenet-tiny")
def mobilefacenet_tiny(
    shape: tuple[int, ...], classes: int, *, embedding: Size = 128, norm: Norm = "running", groups: Size = 2
) -> RecognitionModel:
    """MobileFaceNet at a quarter of its width, for CPUs: 91,232 weights before the head at 112x112.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        embedding: Length of the embedding, which is the feature.
        norm: Normalization layers: "running" is BatchNorm with running statistics, "batch" uses batch statistics in
            evaluation too, "fixed" keeps the initial statistics of a pre-trained network, "group" is GroupNorm.
        groups: Number of groups of "group".

    Returns:
        The model, with a `body` and a `head`.
    """
    return mobilefacenet(shape, classes, embedding=embedding, width=0.25, norm=norm, groups=groups)


@MODELS.add("mbf")
def mbf(
    shape: tuple[int, ...],
    classes: int,
    *,
    embedding: Size = 512,
    scale: Size = 2,
    blocks: tuple[Depth, Depth, Depth, Depth] = (1, 4, 6, 2),
    norm: Norm = "running",
    groups: Size = 2,
) -> RecognitionModel:
    """InsightFace's MobileFaceNet, wider between its bottlenecks: 2,059,520 weights before the head at 112x112.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        embedding: Length of the embedding, which is the feature.
        scale: Factor of the outer channel counts of the paper; the hidden ones are the paper's.
        blocks: Numbers of bottlenecks that keep the size; a first number of 1 stands for one grouped convolution.
        norm: Normalization layers: "running" is BatchNorm with running statistics, "batch" uses batch statistics in
            evaluation too, "fixed" keeps the initial statistics of a pre-trained network, "group" is GroupNorm.
        groups: Number of groups of "group".

    Returns:
        The model, with a `body` and a `head`.
    """
    _, (channels, height, image_width) = input_layers("mbf", shape, smallest=SMALLEST)
    normalizer = Normalizer(norm, groups)
    first, *others = blocks
    plan = tuple(stage.wider(1, scale) for stage in stages(*others))
    outer = plan[0].channels
    body: OrderedDict[str, nn.Module] = OrderedDict(stem=convolution(channels, outer, 3, normalizer, stride=2))
    if first == 1:
        body["depthwise"] = convolution(outer, outer, 3, normalizer, groups=DEPTH_WISE_GROUPS)
    else:
        plan = (Stage(128, outer, first, 1), *plan)
    body["blocks"] = bottlenecks(outer, plan, normalizer)
    body |= global_depthwise(plan[-1].channels, 512, size_after_halving(height, image_width, 4), embedding, normalizer)
    return recognizer(body, embedding, classes)


@MODELS.add("mbf-large")
def mbf_large(
    shape: tuple[int, ...], classes: int, *, embedding: Size = 512, norm: Norm = "running", groups: Size = 2
) -> RecognitionModel:
    """InsightFace's larger MobileFaceNet, four times as wide and twice as deep: 6,314,880 weights before the head.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        embedding: Length of the embedding, which is the feature.
        norm: Normalization layers: "running" is BatchNorm with running statistics, "batch" uses batch statistics in
            evaluation too, "fixed" keeps the initial statistics of a pre-trained network, "group" is GroupNorm.
        groups: Number of groups of "group".

    Returns:
        The model, with a `body` and a `head`.
    """
    return mbf(shape, classes, embedding=embedding, scale=4, blocks=(2, 8, 12, 4), norm=norm, groups=groups)
