"""IResNet, ArcFace's residual networks (Deng et al. 2019; Duta et al. 2020): BN first, nothing after the sum."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from fedra.models.convolution import convolution, size_after_halving
from fedra.models.normalization import Norm, Normalizer, with_fixed_scale
from fedra.models.recognition_model import RecognitionModel
from fedra.models.resnet import shortcut
from fedra.models.stem import input_layers
from fedra.models.zoo import MODELS
from fedra.registry import Share

Size = Annotated[int, Field(gt=0)]


class ImprovedBlock(nn.Module):
    """Compute shortcut(x) + norm(conv(prelu(norm(conv(norm(x)))))); the second convolution has the stride."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, normalizer: Normalizer) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            normalizer.maps(channels_in),
            nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
            normalizer.maps(channels_out),
            nn.PReLU(channels_out),
            nn.Conv2d(channels_out, channels_out, 3, stride, padding=1, bias=False),
            normalizer.maps(channels_out),
        )
        self.shortcut = shortcut(channels_in, channels_out, stride, normalizer)

    def forward(self, maps: Tensor) -> Tensor:
        summed: Tensor = self.shortcut(maps) + self.residual(maps)
        return summed


def improved_blocks(width: int, counts: tuple[int, ...], normalizer: Normalizer) -> nn.Sequential:
    """Return stages of `counts` blocks; every stage doubles the channels and halves the size."""
    layers, channels = nn.Sequential(), width
    for stage, count in enumerate(counts):
        wider = width * 2**stage
        for number in range(count):
            layers.append(ImprovedBlock(channels, wider, 2 if number == 0 else 1, normalizer))
            channels = wider
    return layers


def _register(name: str, counts: tuple[int, int, int, int], about: str, size: tuple[int, int] = (64, 512)) -> None:
    def iresnet(
        shape: tuple[int, ...],
        classes: int,
        *,
        embedding: Size = size[1],
        dropout: Share = 0.0,
        width: Size = size[0],
        norm: Norm = "running",
        groups: Size = 2,
    ) -> RecognitionModel:
        _, (channels, height, image_width) = input_layers(name, shape, smallest=16)
        normalizer = Normalizer(norm, groups)
        high, wide = size_after_halving(height, image_width, 4)
        body: OrderedDict[str, nn.Module] = OrderedDict(
            stem=convolution(channels, width, 3, normalizer),
            blocks=improved_blocks(width, counts, normalizer),
            norm=normalizer.maps(8 * width),
            flatten=nn.Flatten(),
        )
        if dropout:
            body["dropout"] = nn.Dropout(dropout)
        body["embedding"] = nn.Linear(8 * width * high * wide, embedding)
        body["features"] = with_fixed_scale(normalizer.vectors(embedding))
        return RecognitionModel(_initialize(nn.Sequential(body)), nn.Linear(embedding, classes, bias=False))

    iresnet.__doc__ = f"""{about}

    The sides are halved four times. The feature is the embedding after a last normalization whose scale is fixed to 1:
    published counts include that scale, although it is not trained.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        embedding: Length of the embedding.
        dropout: Dropout before the embedding; 0.4 is usual for CASIA-WebFace.
        width: Channels of the first stage.
        norm: Normalization layers: "running" is BatchNorm with running statistics, "batch" uses batch statistics in
            evaluation too, "fixed" keeps the initial statistics of a pre-trained network, "group" is GroupNorm.
        groups: Number of groups of "group".

    Returns:
        The model, with a `body` and a `head`.
    """
    MODELS.add(name)(iresnet)


def _initialize(body: nn.Sequential) -> nn.Sequential:
    """Initialize every convolution from N(0, 0.1^2), as ArcFace's code does."""
    for layer in body.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, 0.0, 0.1)
    return body


for _depth, _counts, _weights in (
    (18, (2, 2, 2, 2), "24,025,600"),
    (34, (3, 4, 6, 3), "34,139,328"),
    (50, (3, 4, 14, 3), "43,590,848"),
    (100, (3, 13, 30, 3), "65,156,160"),
):
    _register(
        f"iresnet{_depth}",
        _counts,
        f"ArcFace's IResNet-{_depth} (Deng et al. 2019): {_weights} weights before the head at 112x112.",
    )
_register("iresnet-tiny", (1, 1, 1, 1), "IResNet with one block per stage and 16 to 128 channels, for CPUs.", (16, 128))
