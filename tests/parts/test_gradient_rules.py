"""Gradient rules on their own: clipping, the drift radius, and what a scope covers."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

import toy
from fedra.algorithms import fedavg, fedsol, scaffold
from fedra.algorithms.fedprox import Proximal
from fedra.algorithms.fedsol import DriftRadius
from fedra.core import tree
from fedra.core.sharing import Sharing
from fedra.parts.gradient import Clip, Perturb


@pytest.mark.parametrize(("norm", "shortened"), [(1e-3, True), (1e3, False)])
def test_clip_shortens_and_never_stretches(norm: float, shortened: bool) -> None:
    scene = toy.scene(fedavg(), stir=0.3)
    slope = scene.view().gradient(scene.work.algorithm.objective, scene.params)
    found = Clip(norm).gradient(lambda params: slope, scene.params, scene.view())
    if shortened:
        assert float(tree.norm(found)) == pytest.approx(norm, rel=1e-12)
        assert float(tree.dot(found, slope)) == pytest.approx(norm * float(tree.norm(slope)), rel=1e-12)
    else:
        assert toy.same_bits(found, slope)


def test_clip_of_nothing_is_nothing() -> None:
    scene = toy.scene(fedavg())
    nothing = tree.zeros_like(scene.params)
    assert toy.same_bits(Clip().gradient(lambda params: nothing, scene.params, scene.view()), nothing)


@pytest.mark.parametrize("over", ["dim0", "tensor", "layer"])
def test_the_drift_is_of_unit_length_over_its_group(over: Literal["dim0", "tensor", "layer"]) -> None:
    scene = toy.scene(fedavg(), stir=0.3)
    drift = DriftRadius(over).drift(scene.params, scene.view(), scene.client.trained)
    assert all(bool((value >= 0).all()) for value in drift.values())
    weight, bias = drift["body.0.weight"], drift["body.0.bias"]
    if over == "dim0":
        assert torch.allclose(weight.norm(dim=0), torch.ones(5, dtype=torch.float64))
        assert float(bias.norm()) == pytest.approx(1.0)
    elif over == "tensor":
        assert float(weight.norm()) == pytest.approx(1.0)
    else:
        assert float((weight.square().sum() + bias.square().sum()).sqrt()) == pytest.approx(1.0)


@pytest.mark.parametrize("over", ["dim0", "tensor", "layer"])
def test_without_drift_there_is_no_adaptive_perturbation(over: Literal["dim0", "tensor", "layer"]) -> None:
    scene = toy.scene(fedavg())
    drift = DriftRadius(over).drift(scene.params, scene.view(), scene.client.trained)
    assert not any(value.any() for value in drift.values())


def test_frozen_parameters_are_neither_perturbed_nor_moved() -> None:
    algorithm = fedsol(proximal=Proximal(), rho=0.5).plus(Sharing(frozen=("body.0.bias",)))
    scene = toy.scene(algorithm, stir=0.3)
    rule = algorithm.gradient[0]
    assert isinstance(rule, Perturb)
    eps = rule.perturbation(lambda at: at, scene.params, scene.view())
    assert "body.0.bias" not in eps
    before = scene.params["body.0.bias"].clone()
    scene.step()
    assert torch.equal(scene.params["body.0.bias"], before)
    assert not scene.params["body.0.bias"].requires_grad


def test_the_clip_of_scaffold_is_outside_the_correction() -> None:
    """The corrected gradient is what is shortened."""
    scene = toy.scene(scaffold(clip=0.01), stir=0.3)
    before = tree.clone(scene.params)
    scene.step()
    moved = tree.subtract(tree.clone(scene.params), before)
    decayed = tree.add(moved, before, 0.1 * 1e-3)  # lr * weight decay, which the optimizer adds after the clip
    assert float(tree.norm(decayed)) == pytest.approx(0.1 * 0.01, rel=1e-9)
