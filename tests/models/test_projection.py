"""MOON's projection between body and head."""

from __future__ import annotations

import torch

from fedra.models import build, with_projection
from fedra.models.recognition_model import has_body_and_head


def test_two_layers_stand_between_body_and_head() -> None:
    plain = build("mlp", (1, 4, 4), 3, seed=0, hidden=(8,))
    model = with_projection(plain, 5, (1, 4, 4), 3, seed=1)
    inputs = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    assert has_body_and_head(model)
    assert model.body(inputs).shape == (6, 5)
    assert model(inputs).shape == (6, 3)
    features = plain.body(inputs)
    first, _, second = model.body[1]
    assert (first.in_features, first.out_features, second.in_features, second.out_features) == (8, 8, 8, 5)
    assert torch.equal(model.body(inputs), second(torch.relu(first(features))))


def test_its_weights_come_from_the_seed_alone() -> None:
    def made(seed: int) -> torch.Tensor:
        plain = build("mlp", (4,), 3, seed=0, hidden=(8,))
        return with_projection(plain, 5, (4,), 3, seed=seed).head.weight.detach()

    before = torch.random.get_rng_state()
    assert torch.equal(made(1), made(1))
    assert not torch.equal(made(1), made(2))
    assert torch.equal(torch.random.get_rng_state(), before)
