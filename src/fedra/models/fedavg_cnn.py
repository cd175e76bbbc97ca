"""The CNN of McMahan et al. (2017), which is widely used in the federated literature."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from fedra.models.recognition_model import RecognitionModel
from fedra.models.stem import input_layers
from fedra.models.zoo import MODELS


@MODELS.add("fedavg-cnn")
def fedavg_cnn(
    shape: tuple[int, ...], classes: int, *, repeat_gray: bool = False, width: Annotated[int, Field(gt=0)] = 32
) -> RecognitionModel:
    """Two 5x5 convolutions and a 512-dimensional layer (McMahan et al. 2017): 1,663,370 weights on MNIST.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        repeat_gray: Repeat one-channel images to three channels in the forward pass: the 1,664,970 weights of FedSoL's
            experiments on MNIST.
        width: Channels of the first convolution; the second has 2 width, the feature 16 width.

    Returns:
        The model, with a `body` and a `head`.
    """
    layers, (channels, rows, columns) = input_layers("fedavg-cnn", shape, smallest=8, repeat_gray=repeat_gray)
    body = nn.Sequential(
        *layers,
        nn.Conv2d(channels, width, 5, padding=2),
        nn.MaxPool2d(2),  # before the ReLU: the same values and gradients, on a quarter of the entries
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * (rows // 4) * (columns // 4), 16 * width),
        nn.ReLU(),
    )
    return RecognitionModel(body, nn.Linear(16 * width, classes))
