"""The four losses that pytorch-metric-learning has too, against it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedra.losses import ArcFace, CircleLoss, CosFace, SphereFace

peer = pytest.importorskip("pytorch_metric_learning.losses", reason="pytorch-metric-learning is not installed")
reducers = pytest.importorskip("pytorch_metric_learning.reducers")

pytestmark = pytest.mark.filterwarnings("ignore")  # the peer warns about its own use of numpy
CLASSES, DIMENSION = 7, 4


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = 3 * torch.randn(50, DIMENSION, generator=generator, dtype=torch.float64)
    weight = torch.randn(CLASSES, DIMENSION, generator=generator, dtype=torch.float64)
    return features, weight, torch.randint(0, CLASSES, (50,), generator=generator)


def with_weight(loss: Any, weight: torch.Tensor) -> Any:
    loss.W.data = weight.T.clone()
    return loss


@pytest.mark.parametrize("scale", [64.0, 8.0])
def test_arcface_and_cosface(scale: float) -> None:
    features, weight, labels = batch()
    theirs = with_weight(peer.ArcFaceLoss(CLASSES, DIMENSION, margin=math.degrees(0.5), scale=scale), weight)
    assert float(ArcFace(scale=scale)(features, weight, labels)) == pytest.approx(
        float(theirs(features, labels)), abs=1e-5
    )
    theirs = with_weight(peer.CosFaceLoss(CLASSES, DIMENSION, margin=0.35, scale=scale), weight)
    assert float(CosFace(scale=scale)(features, weight, labels)) == pytest.approx(
        float(theirs(features, labels)), abs=1e-5
    )


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
def test_sphereface_without_annealing(margin: int) -> None:
    features, weight, labels = batch()
    theirs = with_weight(peer.SphereFaceLoss(CLASSES, DIMENSION, margin=margin, scale=2), weight)
    ours = SphereFace(scale=2.0, margin=margin, lambda_base=0.0, lambda_min=0.0)
    value = ours(features, weight, labels, state=ours.init_state())
    assert float(value) == pytest.approx(float(theirs(features, labels)), abs=1e-5)


@pytest.mark.parametrize(("margin", "scale"), [(0.25, 256.0), (0.4, 80.0)])
def test_circle_loss_with_the_class_weights_as_references(margin: float, scale: float) -> None:
    features, weight, labels = batch()
    theirs = peer.CircleLoss(m=margin, gamma=scale, reducer=reducers.MeanReducer())
    value = theirs(features, labels, ref_emb=weight, ref_labels=torch.arange(CLASSES))
    ours = CircleLoss(margin=margin, scale=scale)(features, weight, labels)
    assert float(ours) == pytest.approx(float(value), abs=1e-5)
