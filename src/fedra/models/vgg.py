"""VGG-11 (Simonyan and Zisserman 2015) for small images, as FedSoL trains it."""

from __future__ import annotations

from torch import nn

from fedra.models.recognition_model import RecognitionModel
from fedra.models.stem import initialize_convolutions, input_layers
from fedra.models.zoo import MODELS

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


@MODELS.add("vgg11")
def vgg11(shape: tuple[int, ...], classes: int, *, repeat_gray: bool = False) -> RecognitionModel:
    """VGG-11 without normalization or dropout: 9,750,922 weights for ten classes of 32x32 color images.

    Sides below 32 are enlarged to 32 (nearest pixel); the feature is the second 512-dimensional layer.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        repeat_gray: Repeat one-channel images to three channels in the forward pass.

    Returns:
        The model, with a `body` and a `head`.
    """
    layers, (channels, height, width) = input_layers("vgg11", shape, smallest=8, repeat_gray=repeat_gray, enlarge_to=32)
    for stage in STAGES:
        for channels_out in stage:
            layers += [nn.Conv2d(channels, channels_out, 3, padding=1), nn.ReLU()]
            channels = channels_out
        # Before the stage's last ReLU: the same values and gradients, on a quarter of the entries.
        layers.insert(-1, nn.MaxPool2d(2))
    body = nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(channels * (height // 32) * (width // 32), 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
    )
    initialize_convolutions(body)
    return RecognitionModel(body, nn.Linear(512, classes))
