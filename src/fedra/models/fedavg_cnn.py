"""The CNN of McMahan et al. (2017), which is widely used in the federated literature."""

from __future__ import annotations

from torch import nn

from fedra.models.recognition_model import RecognitionModel
from fedra.models.stem import input_layers
from fedra.models.zoo import MODELS


@MODELS.add("fedavg-cnn")
def fedavg_cnn(shape: tuple[int, ...], classes: int, *, repeat_gray: bool = False) -> RecognitionModel:
    """Two 5x5 convolutions and a 512-dimensional layer (McMahan et al. 2017): 1,663,370 weights on MNIST.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        repeat_gray: Repeat one-channel images to three channels in the forward pass: the 1,664,970 weights of FedSoL's
            experiments on MNIST.

    Returns:
        The model, with a `body` and a `head`.
    """
    layers, (channels, height, width) = input_layers("fedavg-cnn", shape, smallest=8, repeat_gray=repeat_gray)
    body = nn.Sequential(
        *layers,
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.MaxPool2d(2),  # before the ReLU: the same values and gradients, on a quarter of the entries
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )
    return RecognitionModel(body, nn.Linear(512, classes))
