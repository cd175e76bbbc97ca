"""Losses that the adaptive margin is compared with, against plain loops from their formulas: values and gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedra.errors import ConfigError
from fedra.losses import AdaptiveFace, ArcFace, BroadFace, CoCo, SphereFace, Triplet, UniformFace
from fedra.losses.centers import potential_energy

Batch = tuple[Tensor, Tensor, Tensor]


def batch(seed: int = 0, examples: int = 14, classes: int = 4) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    features = 4 * torch.randn(examples, 5, generator=draw, dtype=torch.float64)
    weight = torch.randn(classes, 5, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, classes, (examples,), generator=draw)
    return features.requires_grad_(), weight.requires_grad_(), labels


def agree(found: Tensor, wanted: Tensor, *inputs: Tensor) -> None:
    assert float(found) == pytest.approx(float(wanted), rel=1e-9)
    for mine, plain in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(wanted, inputs), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-9, atol=1e-12)
        assert plain.abs().max() > 1e-6


def naive_triplet(features: Tensor, labels: Tensor, margin: float, semi_hard: bool) -> Tensor:
    unit = [f / f.norm() for f in features]
    total = features.new_zeros(())
    for i, anchor in enumerate(unit):
        hinges = []
        negatives = [(anchor - unit[n]).square().sum() for n in range(len(unit)) if labels[n] != labels[i]]
        for p in range(len(unit)):
            if p == i or labels[p] != labels[i] or not negatives:
                continue
            near = (anchor - unit[p]).square().sum()
            farther = [d for d in negatives if d > near]
            if semi_hard:
                hinges.append(torch.relu(near - (min(farther) if farther else max(negatives)) + margin))
            else:
                hinges.append(sum(torch.relu(near - d + margin) for d in negatives) / len(negatives))
        if hinges:
            total = total + sum(hinges) / len(hinges)
    return total / len(unit)


@pytest.mark.parametrize("mining", ["semi-hard", "all"])
@pytest.mark.parametrize("seed", [0, 1])
def test_triplet(mining: str, seed: int) -> None:
    features, weight, labels = batch(seed)
    loss = Triplet(margin=0.3, mining=mining)  # type: ignore[arg-type]
    agree(loss(features, weight, labels), naive_triplet(features, labels, 0.3, mining == "semi-hard"), features)


def test_triplet_without_partners_is_zero_and_padding_is_no_partner() -> None:
    features, weight, _ = batch()
    assert not Triplet().per_example(features, weight.detach().repeat(4, 1), torch.arange(14)).any()
    assert not Triplet().per_example(features, weight, torch.zeros(14, dtype=torch.long)).any()
    labels = torch.arange(14) % 4
    mask = torch.arange(14) < 9
    losses, _ = Triplet().step(features, weight, labels, {}, mask=mask)
    torch.testing.assert_close(losses[:9], Triplet().per_example(features[:9], weight, labels[:9]))
    assert not losses[9:].any()


def test_coco() -> None:
    features, weight, labels = batch()
    scale = 0.5 * math.log(3 / (math.exp(1e-4) - 1))
    wanted = features.new_zeros(())
    for f, y in zip(features, labels.tolist(), strict=True):
        logits = torch.stack([scale * (f @ w) / (f.norm() * w.norm()) for w in weight])
        wanted = wanted + logits.logsumexp(0) - logits[y]
    agree(CoCo()(features, weight, labels), wanted / len(labels), features, weight)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_coco_fits_a_perfect_example_to_its_tolerance(classes: int) -> None:
    cosines = torch.full((1, classes), -1.0, dtype=torch.float64)
    cosines[0, 0] = 1
    logits = CoCo(tolerance=1e-4).logits(cosines, torch.tensor([0]))
    assert float(logits.logsumexp(1) - logits[0, 0]) == pytest.approx(1e-4, rel=1e-6)


def test_uniformface_adds_the_energy_of_the_centers() -> None:
    features, weight, labels = batch()
    loss, state = UniformFace(repulsion=3.0), {"step": torch.tensor(50.0, dtype=torch.float64)}
    unit = [w / w.norm() for w in weight]
    energy = sum(1 / (1 + (unit[i] - unit[j]).norm()) for i in range(4) for j in range(4) if i != j) / 12
    wanted = SphereFace()(features, weight, labels, state=state) + 3 * energy
    agree(loss(features, weight, labels, state=state), wanted, features, weight)


def test_adaptiveface() -> None:
    features, weight, labels = batch()
    margins = torch.tensor([0.1, 0.5, 0.9, 0.3], dtype=torch.float64, requires_grad=True)
    wanted = -2.0 * margins.sum() / 4
    for f, y in zip(features, labels.tolist(), strict=True):
        cosines = torch.stack([(f @ w) / (f.norm() * w.norm()) for w in weight])
        logits = 30 * torch.stack([c - margins[y] if j == y else c for j, c in enumerate(cosines)])
        wanted = wanted + (logits.logsumexp(0) - logits[y]) / len(labels)
    found = AdaptiveFace(reward=2.0)(features, weight, labels, learned={"margins": margins})
    agree(found, wanted, features, weight, margins)


def test_adaptiveface_uses_margins_within_the_unit_interval() -> None:
    features, weight, labels = batch()
    outside = torch.tensor([-0.5, 1.5, 0.2, 0.2], dtype=torch.float64, requires_grad=True)
    inside = outside.detach().clamp(0, 1)
    found = AdaptiveFace()(features, weight, labels, learned={"margins": outside})
    assert float(found) == pytest.approx(float(AdaptiveFace()(features, weight, labels, learned={"margins": inside})))
    (slope,) = torch.autograd.grad(found, outside)
    assert slope[:2].all()


def naive_broadface(steps: list[Batch], size: int, compensate: bool) -> list[Tensor]:
    """The loss of each step: features learn from the batch, class vectors from the batch and the queue."""
    queue: list[tuple[Tensor, int, Tensor]] = []
    found = []
    for features, weight, labels in steps:
        moved = []
        for x, y, then in queue:
            move = x.norm() / then.norm() * (weight[y].detach() - then) if compensate else 0
            moved.append((x + move, y))
        current = [(f, int(y)) for f, y in zip(features, labels, strict=True)]
        wide = [*moved, *((f.detach(), y) for f, y in current)]
        own = sum(arcface(f, weight.detach(), y) for f, y in current) / len(current)
        found.append(own + sum(arcface(f, weight, y) for f, y in wide) / len(wide))
        queue = [*queue, *((f.detach(), y, weight[y].detach()) for f, y in current)][-size:]
    return found


def arcface(feature: Tensor, weight: Tensor, label: int) -> Tensor:
    cosines = torch.stack([(feature @ w) / (feature.norm() * w.norm()) for w in weight])
    logits = 8 * cosines
    logits = torch.cat(
        [logits[:label], 8 * torch.cos(torch.acos(cosines[label : label + 1]) + 0.4), logits[label + 1 :]]
    )
    return logits.logsumexp(0) - logits[label]


@pytest.mark.parametrize("compensate", [True, False])
def test_broadface_over_three_steps(compensate: bool) -> None:
    steps = [batch(seed, examples=6) for seed in range(3)]
    loss = BroadFace(size=9, margin=0.4, scale=8.0, overflow="none", compensate=compensate)
    state = loss.init_state(steps[0][1])
    for step, wanted in zip(steps, naive_broadface(steps, 9, compensate), strict=True):
        losses, state = loss.step(*step, state)
        agree(losses.mean(), wanted, step[0], step[1])
    assert (state["queue_labels"] >= 0).all()


def test_broadface_with_an_empty_queue_has_arcface_gradients() -> None:
    features, weight, labels = batch()
    loss = BroadFace(size=4)
    found = loss(features, weight, labels, state=loss.init_state(weight))
    plain = ArcFace()(features, weight, labels)
    assert float(found) == pytest.approx(2 * float(plain))
    for mine, wanted in zip(
        torch.autograd.grad(found, (features, weight)), torch.autograd.grad(plain, (features, weight)), strict=True
    ):
        torch.testing.assert_close(mine, wanted)
    with pytest.raises(ConfigError, match=r"init_state\(weight\)"):
        loss.init_state()


class Largest(TorchDispatchMode):
    """Notes the number of entries of the largest tensor that is computed."""

    entries = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), settings: Any = None) -> Any:
        found = function(*arguments, **(settings or {}))
        self.entries = max(self.entries, found.numel() if isinstance(found, torch.Tensor) else 0)
        return found


def test_the_energy_of_the_centers_takes_the_memory_of_a_matrix_of_classes() -> None:
    with Largest() as seen:
        potential_energy(torch.randn(60, 500))
    assert seen.entries == 60 * 500  # not 60 * 59 / 2 differences of 500 entries
