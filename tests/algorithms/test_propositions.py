"""FedSoL's two propositions, on bowls."""

from __future__ import annotations

import pytest
from bowls import ToyPull, ToyQuadratic, on
from torch import Tensor

import toy
from fedra import algorithms as fed
from fedra.core.local_training import LocalTraining


def bowls(rho: float, rate: float) -> tuple[Tensor, Tensor, Tensor]:
    """The weights before a step, after FedAvg's and after FedSoL's."""
    local = LocalTraining(batch=4, lr=rate)
    ends = []
    for algorithm in (fed.fedavg(), fed.fedsol(rho=rho, proximal=ToyPull())):
        scene = toy.scene(on(ToyQuadratic(), algorithm), local=local)
        start = scene.params["head.weight"].detach().clone()
        scene.step()
        ends.append(scene.params["head.weight"].detach())
    return start, ends[0], ends[1]


def value_of(bowl: ToyQuadratic, weight: Tensor) -> Tensor:
    return 0.5 * (bowl.curvature(weight) * (weight - bowl.center).square()).sum()


@pytest.mark.parametrize("rho", [0.1, 1.0])
def test_proposition_1_fedsol_lowers_the_proximal_loss_more(rho: float) -> None:
    """Its change beyond FedAvg's is - rate rho g_p' H g_p / ||g_p||, to first order in the rate."""
    rate, bowl, pull = 1e-6, ToyQuadratic(), ToyPull()
    start, plain, sol = bowls(rho, rate)
    g = pull.slope(start)
    promised = -rate * rho * (g * bowl.curvature(start) * g).sum() / g.norm()
    found = value_of(pull, sol) - value_of(pull, plain)
    assert float(promised) < 0
    assert float(found) == pytest.approx(float(promised), rel=1e-4)


@pytest.mark.parametrize("rho", [0.1, 1.0])
def test_proposition_2_the_local_loss_falls_as_at_half_the_perturbation(rho: float) -> None:
    """- rate ||grad L(w + rho/2 g_p/||g_p||)||^2, whose own square in rho is - rate rho^2/4 ||H g_p||^2 / ||g_p||^2."""
    rate, bowl, pull = 1e-6, ToyQuadratic(), ToyPull()
    start, _, sol = bowls(rho, rate)
    along = pull.slope(start) / pull.slope(start).norm()
    half = bowl.slope(start + rho / 2 * along).square().sum()
    square = rho**2 / 4 * (bowl.curvature(start) * along).square().sum()
    found = value_of(bowl, sol) - value_of(bowl, start)
    assert float(found) == pytest.approx(float(-rate * (half - square)), rel=1e-4)
