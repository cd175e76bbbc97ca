"""The CNN of McMahan et al. (2017), the workhorse of the federated literature."""

from __future__ import annotations

from torch import nn

from fedra.models.recognition_model import RecognitionModel
from fedra.models.stem import front
from fedra.models.zoo import MODELS


@MODELS.add("fedavg-cnn")
def fedavg_cnn(shape: tuple[int, ...], classes: int, *, repeat_gray: bool = False) -> RecognitionModel:
    """Two 5x5 convolutions and a 512-d layer (McMahan et al. 2017): 1,663,370 weights on MNIST.

    With `repeat_gray`, one-channel images are repeated to three in the forward pass and the first
    convolution reads three: the 1,664,970 weights of FedSoL's experiments on MNIST.
    """
    layers, (channels, height, width) = front("fedavg-cnn", shape, smallest=8, repeat_gray=repeat_gray)
    body = nn.Sequential(
        *layers,
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.MaxPool2d(2),  # before the ReLU, which is the same there, gradient and all, on a quarter of the numbers
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )
    return RecognitionModel(body, nn.Linear(512, classes))
