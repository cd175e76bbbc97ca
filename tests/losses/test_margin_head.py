"""A margin loss with its class weights as one module, in a plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedra.errors import ConfigError
from fedra.losses import (
    LOSSES,
    AdaFace,
    ArcFace,
    CosFace,
    CurricularFace,
    ElasticArcFace,
    MarginHead,
    Softmax,
    SphereFace,
    UniTSFace,
)

CLASSES, FEATURES, BATCH = 5, 8, 12


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    features = torch.randn(BATCH, FEATURES, generator=draw(seed))
    return features, torch.arange(BATCH) % CLASSES


def head(loss: Any, **options: Any) -> MarginHead:
    return MarginHead(loss, CLASSES, FEATURES, generator=draw(), **options)


@pytest.mark.parametrize("name", list(LOSSES))
def test_every_loss_trains_its_head_and_scores_classes(name: str) -> None:
    module = head(LOSSES[name]())
    features, labels = batch()
    features.requires_grad_()
    module(features, labels, draw()).backward()
    assert features.grad is not None
    if not module.loss.trains_vectors:
        assert module.weight.grad is None
        return
    assert module.weight.grad is not None
    assert float(module.weight.grad.abs().sum()) > 0
    assert module.logits(features).shape == (BATCH, CLASSES)


def test_the_loss_is_that_of_the_class_weights() -> None:
    features, labels = batch()
    module, loss = head(ArcFace(scale=32, margin=0.3)), ArcFace(scale=32, margin=0.3)
    torch.testing.assert_close(module(features, labels), loss(features, module.weight, labels))
    cosines = nn.functional.normalize(features) @ nn.functional.normalize(module.weight).T
    torch.testing.assert_close(module.logits(features), 32 * cosines)
    plain = head(Softmax())
    torch.testing.assert_close(plain.logits(features), features @ plain.weight.T)


def test_the_start_is_drawn_as_documented_and_by_the_generator() -> None:
    large = MarginHead(ArcFace(), 2000, 64, generator=draw(3))
    assert float(large.weight.std()) == pytest.approx(0.01, rel=0.02)
    assert torch.equal(large.weight, MarginHead(ArcFace(), 2000, 64, generator=draw(3)).weight)


def test_a_plain_loop_learns_to_tell_classes_apart() -> None:
    labels = torch.arange(60) % CLASSES
    inputs = torch.eye(CLASSES)[labels] + 0.2 * torch.randn(60, CLASSES, generator=draw())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Linear(CLASSES, FEATURES)
    module = head(CosFace(scale=16, margin=0.2))
    optimizer = torch.optim.Adam([*net.parameters(), *module.parameters()], lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        module(net(inputs), labels).backward()
        optimizer.step()
    assert float((module.logits(net(inputs)).argmax(dim=1) == labels).float().mean()) > 0.95


def test_state_advances_in_training_only_and_survives_a_round_trip() -> None:
    module = head(CurricularFace())
    features, labels = batch()
    for _ in range(3):
        module(features, labels)
    advanced = float(module.margin.state["t"])
    assert advanced != 0
    module.eval()
    module(features, labels)
    assert float(module.margin.state["t"]) == advanced
    other = MarginHead(CurricularFace(), CLASSES, FEATURES, generator=draw(9))
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(other.eval()(features, labels), module(features, labels))
    assert {"weight", "margin.t"} == set(module.state_dict())


def test_learned_parameters_are_trained_and_memories_are_kept() -> None:
    module = head(UniTSFace())
    assert {name for name, _ in module.named_parameters()} == {"weight", "margin.learned.bias"}
    features, labels = batch()
    module(features, labels)
    torch.testing.assert_close(module.margin.state["memory"][labels[-1]], features[-1])


def test_random_margins_come_from_the_generator() -> None:
    module, (features, labels) = head(ElasticArcFace(sigma=0.1)), batch()
    before = torch.random.get_rng_state()
    first, second, other = (float(module(features, labels, draw(seed))) for seed in (4, 4, 5))
    assert first == second != other
    module.logits(features)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_any_type_of_weights_and_features(dtype: torch.dtype) -> None:
    features, labels = batch()
    module = head(AdaFace()).to(dtype)
    assert module.weight.dtype == dtype
    found = module(features.to(dtype), labels)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert bool(found.isfinite())


def test_a_counter_goes_on_counting_in_half_precision() -> None:
    module = head(SphereFace()).to(torch.bfloat16)
    features, labels = batch()
    module.margin.step = torch.tensor(256.0)
    module.to(torch.bfloat16)
    module(features, labels)
    assert float(module.margin.state["step"]) == 257


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((ArcFace, 5, 8), "loss must be a margin loss such as"),
        (("arcface", 5, 8), "loss must be a margin loss such as"),
        ((ArcFace(), 1, 8), "classes must be at least 2 and features at least 1 for ArcFace, got 1 and 8"),
        ((ArcFace(), 5, 0), "got 5 and 0"),
    ],
)
def test_mistakes_are_named(arguments: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        MarginHead(*arguments)
