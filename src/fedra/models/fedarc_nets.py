"""The two networks of FedArc: a trunk, a bias-free 512-d embedding, a linear head.

FedArc's own class vectors (classes x 512) belong to its algorithm, not to the network: the counts in
print, 326.5k and 11.81M, include them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from fedra.models.normalization import Norm, Normalizer
from fedra.models.recognition_model import RecognitionModel
from fedra.models.resnet import residual_trunk
from fedra.models.stem import front, initialize_convolutions
from fedra.models.zoo import MODELS

EMBEDDING = 512


@MODELS.add("fedarc-cnn")
def fedarc_cnn(
    shape: tuple[int, ...], classes: int, *, activation: Literal["none", "relu"] = "none"
) -> RecognitionModel:
    """FedArc's MNIST network: two unpadded 5x5 convolutions and the embedding; 321,418 weights.

    The published network has no activation, max-pooling is its only non-linearity; activation="relu"
    puts one at each pooling and leaves the embedding linear.
    """
    layers, (channels, height, width) = front("fedarc-cnn", shape, smallest=16)
    body = nn.Sequential(
        *layers,
        *_convolution_and_pool(channels, 32, activation),
        *_convolution_and_pool(32, 64, activation),
        nn.Conv2d(64, 32, 1, bias=False),
        nn.Flatten(),
        nn.Linear(32 * _side(_side(height)) * _side(_side(width)), EMBEDDING, bias=False),
    )
    return RecognitionModel(body, nn.Linear(EMBEDDING, classes))


def _convolution_and_pool(channels_in: int, channels_out: int, activation: str) -> list[nn.Module]:
    # After the pooling a ReLU is the same, gradient and all, on a quarter of the numbers.
    after = [nn.ReLU()] if activation == "relu" else []
    return [nn.Conv2d(channels_in, channels_out, 5), nn.MaxPool2d(2), *after]


def _side(side: int) -> int:
    """The side of a map after an unpadded 5x5 convolution and a 2x2 pooling."""
    return (side - 4) // 2


@MODELS.add("fedarc-resnet18")
def fedarc_resnet18(
    shape: tuple[int, ...],
    classes: int,
    *,
    norm: Norm = "running",
    groups: Annotated[int, Field(gt=0)] = 2,
    width: Annotated[int, Field(gt=0)] = 64,
) -> RecognitionModel:
    """FedArc's CIFAR-100 network: ResNet-18 with the 7x7 stem and an embedding; 11,754,148 weights.

    The official code starts from ImageNet weights; here every weight is drawn (He et al. 2015).
    `norm`, `groups` and `width` are as in resnet18.
    """
    layers, (channels, _, _) = front("fedarc-resnet18", shape, smallest=8)
    normalizer = Normalizer(norm, groups)
    trunk = nn.Sequential(
        *layers,
        nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
        normalizer.maps(width),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.ReLU(),
        *residual_trunk(width, normalizer),
    )
    initialize_convolutions(trunk)
    embedding = nn.Sequential(
        nn.Conv2d(8 * width, EMBEDDING, 1, bias=False),
        normalizer.maps(EMBEDDING),
        nn.Flatten(),
        nn.Linear(EMBEDDING, EMBEDDING, bias=False),
        normalizer.vectors(EMBEDDING),
    )
    return RecognitionModel(nn.Sequential(trunk, embedding), nn.Linear(EMBEDDING, classes))
