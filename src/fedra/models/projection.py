"""MOON's projection head: two layers between the body and the classifier, whose outputs are compared."""

from __future__ import annotations

import torch
from torch import nn

from fedra.core.random import scoped_seed
from fedra.machine import require_memory
from fedra.models.recognition_model import RecognitionModel


def with_projection(
    module: nn.Module, width: int, shape: tuple[int, ...], classes: int, *, seed: int
) -> RecognitionModel:
    """Return a model with a projection (Linear, ReLU, Linear) after its body, and a new head on its outputs.

    Li et al., "Model-contrastive federated learning", CVPR 2021, use width 256.

    Args:
        module: A model with a `body`, which becomes part of the result.
        width: Number of outputs of the projection.
        shape: Shape of one example.
        classes: Number of classes of the new head.
        seed: Seed of the new layers' weights.

    Returns:
        The new model.

    Example:
        >>> from fedra.models import build
        >>> with_projection(build("mlp", (64,), 10, seed=0), 16, (64,), 10, seed=0).head
        Linear(in_features=16, out_features=10, bias=True)
    """
    body = module.get_submodule("body")
    was_training = body.training
    with torch.no_grad():
        features = body.eval()(torch.zeros(1, *shape)).shape[1]
    body.train(was_training)
    needed = 4 * (features * (features + width) + width * classes)
    require_memory("the projection", needed, f"lower model.projection, got {width}")
    with scoped_seed(seed):
        projection = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))
        return RecognitionModel(nn.Sequential(body, projection), nn.Linear(width, classes))
