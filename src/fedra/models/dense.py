"""Models without convolutions, for examples of any shape."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

from pydantic import Field
from torch import nn

from fedra.models.recognition_model import RecognitionModel
from fedra.models.zoo import MODELS


@MODELS.add("mlp")
def mlp(
    shape: tuple[int, ...], classes: int, *, hidden: tuple[Annotated[int, Field(gt=0)], ...] = (200, 200)
) -> RecognitionModel:
    """Fully connected layers with ReLU; the default is the "2NN" of McMahan et al. (2017).

    Args:
        shape: Shape of one example, of any number of dimensions.
        classes: Number of classes.
        hidden: Widths of the hidden layers; () is logistic regression.

    Returns:
        The model, with a `body` and a `head`.
    """
    widths = (math.prod(shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return RecognitionModel(nn.Sequential(*layers), nn.Linear(widths[-1], classes))


@MODELS.add("logistic")
def logistic(shape: tuple[int, ...], classes: int) -> RecognitionModel:
    """Multinomial logistic regression: the features are the inputs themselves.

    Args:
        shape: Shape of one example, of any number of dimensions.
        classes: Number of classes.

    Returns:
        The model, with a `body` and a `head`.
    """
    return mlp(shape, classes, hidden=())
