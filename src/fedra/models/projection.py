"""MOON's projection head: two layers between the body and the classifier, on which features are compared."""

from __future__ import annotations

import torch
from torch import nn

from fedra.core.random import scoped_seed
from fedra.models.recognition_model import RecognitionModel


def with_projection(
    module: nn.Module, width: int, shape: tuple[int, ...], classes: int, *, seed: int
) -> RecognitionModel:
    """`module` with Linear(f, f), ReLU, Linear(f, width) after its body and a new head on the `width` outputs.

    Li et al., "Model-contrastive federated learning", CVPR 2021, use width 256.
    """
    body = module.get_submodule("body")
    was_training = body.training
    with torch.no_grad():
        features = body.eval()(torch.zeros(1, *shape)).shape[1]
    body.train(was_training)
    with scoped_seed(seed):
        projection = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))
        return RecognitionModel(nn.Sequential(body, projection), nn.Linear(width, classes))
