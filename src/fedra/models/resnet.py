"""ResNet-18 (He et al. 2016) with the 3x3 stem for small images, and its trunk for other stems."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedra.models.normalization import Norm, Normalizer
from fedra.models.recognition_model import RecognitionModel
from fedra.models.stem import input_layers
from fedra.models.zoo import MODELS


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
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), normalizer.maps(channels_out)
            )

    def forward(self, maps: Tensor) -> Tensor:
        return F.relu(self.shortcut(maps) + self.residual(maps))


def residual_trunk(width: int, normalizer: Normalizer) -> list[nn.Module]:
    """Return four stages of two blocks, from `width` channels doubling at each, then the mean: (B, 8 width, 1, 1)."""
    layers: list[nn.Module] = []
    channels = width
    for stage in range(4):
        wider = width * 2**stage
        layers.append(ResidualBlock(channels, wider, 1 if stage == 0 else 2, normalizer))
        layers.append(ResidualBlock(wider, wider, 1, normalizer))
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
