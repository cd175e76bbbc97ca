"""The two networks of FedArc: a trunk, a 512-dimensional embedding without bias, a linear head.

FedArc's class vectors (classes x 512) belong to its algorithm, not to the network; the published counts, 326.5k and
11.81M, include them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from fedra.models.normalization import Norm, Normalizer
from fedra.models.recognition_model import RecognitionModel
from fedra.models.resnet import residual_trunk
from fedra.models.stem import initialize_convolutions, input_layers
from fedra.models.zoo import MODELS

EMBEDDING = 512


@MODELS.add("fedarc-cnn")
def fedarc_cnn(
    shape: tuple[int, ...], classes: int, *, activation: Literal["none", "relu"] = "none"
) -> RecognitionModel:
    """FedArc's MNIST network: two unpadded 5x5 convolutions and an embedding; 321,418 weights.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        activation: "none" (the default) as published, where max-pooling is the only non-linearity; "relu" adds one at
            each pooling and keeps the embedding linear.

    Returns:
        The model, with a `body` and a `head`.
    """
    layers, (channels, height, width) = input_layers("fedarc-cnn", shape, smallest=16)
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
    # ReLU after the pooling has the same values and gradients, on a quarter of the entries.
    after = [nn.ReLU()] if activation == "relu" else []
    return [nn.Conv2d(channels_in, channels_out, 5), nn.MaxPool2d(2), *after]


def _side(side: int) -> int:
    """Return the side of a map after an unpadded 5x5 convolution and a 2x2 pooling."""
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

    The paper's embedding is a 1x1 convolution, BatchNorm and a linear layer. As in the authors' code, whose count is
    printed here, a second BatchNorm follows the linear layer. It has no variance on a batch of one image, and the
    authors drop incomplete batches (`local.drop_last`). Their code starts from ImageNet weights; here all weights are
    random (He et al. 2015).

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        norm: Normalization layers: "running" is BatchNorm with running statistics, "batch" uses batch statistics in
            evaluation too, "fixed" keeps the initial statistics of a pre-trained network, "group" is GroupNorm.
        groups: Number of groups of "group".
        width: Channels of the first stage.

    Returns:
        The model, with a `body` and a `head`.
    """
    layers, (channels, _, _) = input_layers("fedarc-resnet18", shape, smallest=8)
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
