"""ResNet-18 and ResNet-34 (He et al. 2016), and their trunk for other stems."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedra.models.normalization import Norm, Normalizer
from fedra.models.recognition_model import RecognitionModel
from fedra.models.stem import input_layers
from fedra.models.zoo import MODELS


def shortcut(channels_in: int, channels_out: int, stride: int, normalizer: Normalizer) -> nn.Module:
    """Return the path around a block: nothing, or a 1x1 projection where the shape changes."""
    if stride == 1 and channels_in == channels_out:
        return nn.Identity()
    projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
    return nn.Sequential(projection, normalizer.maps(channels_out))


class ResidualBlock(nn.Module):
    """Compute relu(shortcut(x) + norm(conv(relu(norm(conv(x)))))), with a 1x1 projection where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, normalizer: Normalizer) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            normalizer.maps(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            normalizer.maps(channels_out),
        )
        self.shortcut = shortcut(channels_in, channels_out, stride, normalizer)

    def forward(self, maps: Tensor) -> Tensor:
        return F.relu(self.shortcut(maps) + self.residual(maps))


def residual_trunk(width: int, normalizer: Normalizer, counts: tuple[int, ...] = (2, 2, 2, 2)) -> list[nn.Module]:
    """Return stages of `counts` blocks, from `width` channels doubling at each, then the mean: (B, channels, 1, 1)."""
    layers: list[nn.Module] = []
    channels = width
    for stage, count in enumerate(counts):
        wider = width * 2**stage
        for number in range(count):
            layers.append(ResidualBlock(channels, wider, 1 if stage == 0 or number > 0 else 2, normalizer))
            channels = wider
    return [*layers, nn.AdaptiveAvgPool2d(1)]


@MODELS.add("resnet18")
def resnet18(
    shape: tuple[int, ...],
    classes: int,
    *,
    norm: Norm = "batch",
    groups: Annotated[int, Field(gt=0)] = 2,
    width: Annotated[int, Field(gt=0)] = 64,
    repeat_gray: bool = False,
) -> RecognitionModel:
    """ResNet-18 with a 3x3 stem (He et al. 2016): 11,173,962 weights for ten classes of color images.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        norm: Normalization layers: "batch" (the default) uses batch statistics in evaluation too and has no buffers,
            "running" is BatchNorm with running statistics, "fixed" keeps the initial statistics of a pre-trained
            network, "group" is GroupNorm.
        groups: Number of groups of "group".
        width: Channels of the first stage; the feature has 8 width entries.
        repeat_gray: Repeat one-channel images to three channels in the forward pass.

    Returns:
        The model, with a `body` and a `head`.
    """
    layers, (channels, _, _) = input_layers("resnet18", shape, smallest=8, repeat_gray=repeat_gray)
    normalizer = Normalizer(norm, groups)
    stem = [nn.Conv2d(channels, width, 3, padding=1, bias=False), normalizer.maps(width), nn.ReLU()]
    body = nn.Sequential(*layers, *stem, *residual_trunk(width, normalizer), nn.Flatten())
    return RecognitionModel(body, nn.Linear(8 * width, classes))


@MODELS.add("resnet34")
def resnet34(
    shape: tuple[int, ...],
    classes: int,
    *,
    stem: Literal["small", "large"] = "large",
    norm: Norm = "running",
    groups: Annotated[int, Field(gt=0)] = 2,
    width: Annotated[int, Field(gt=0)] = 64,
) -> RecognitionModel:
    """ResNet-34 (He et al. 2016): 21,797,672 weights for a thousand classes; not ArcFace's `iresnet34`.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        stem: First layers: "large" is a 7x7 convolution and a maximum, which quarter the sides; "small" is a 3x3
            convolution, for images of about 32x32.
        norm: Normalization layers: "running" is BatchNorm with running statistics, "batch" uses batch statistics in
            evaluation too, "fixed" keeps the initial statistics of a pre-trained network, "group" is GroupNorm.
        groups: Number of groups of "group".
        width: Channels of the first stage; the feature has 8 width entries.

    Returns:
        The model, with a `body` and a `head`.
    """
    layers, (channels, _, _) = input_layers("resnet34", shape, smallest=32 if stem == "large" else 8)
    normalizer = Normalizer(norm, groups)
    side = 7 if stem == "large" else 3
    first = nn.Conv2d(channels, width, side, 2 if stem == "large" else 1, padding=side // 2, bias=False)
    layers += [first, normalizer.maps(width), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2, padding=1)] if stem == "large" else []
    body = nn.Sequential(*layers, *residual_trunk(width, normalizer, (3, 4, 6, 3)), nn.Flatten())
    return RecognitionModel(body, nn.Linear(8 * width, classes))
