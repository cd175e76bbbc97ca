"""Margin heads that keep a state or draw at random, against plain loops: parameters and the server's state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from naive import train
from naive_margins import Ada, Curricular, Dynamic, Elastic, Head, Sphere
from naive_methods import with_vectors
from test_against_naive import EVERYONE, LATECOMER, SETTING

import toy
from fedra.algorithms import fedarc
from fedra.losses import AdaFace, AngularLoss, CurricularFace, DynamicAdaCos, ElasticArcFace, SphereFace

CASES: dict[str, tuple[AngularLoss, Callable[[], Head]]] = {
    "sphereface": (SphereFace(lambda_base=3.0, lambda_min=0.5), Sphere),
    "curricularface": (CurricularFace(scale=8.0, margin=0.4, momentum=0.2, overflow="none"), Curricular),
    "adacos-dynamic": (DynamicAdaCos(), Dynamic),
    "adaface": (AdaFace(scale=8.0, momentum=0.3, overflow="none"), Ada),
    "elastic-arcface": (ElasticArcFace(scale=8.0, margin=0.4, sigma=0.2, overflow="none"), Elastic),
    "elastic-arcface-plus": (
        ElasticArcFace(scale=8.0, margin=0.4, sigma=0.2, assignment="sorted", overflow="none"),
        lambda: Elastic(ordered=True),
    ),
}


@pytest.mark.parametrize("cohorts", [EVERYONE, LATECOMER], ids=["everyone", "latecomer"])
@pytest.mark.parametrize("name", CASES)
def test_parameters_and_state_after_all_rounds(name: str, cohorts: tuple[tuple[int, ...], ...]) -> None:
    loss, make = CASES[name]
    method, work = make(), toy.job(fedarc(margin=loss))
    found = toy.run(work, cohorts)
    start = with_vectors(toy.mlp(), toy.start(work).params["margin-softmax.vectors"])
    wanted = dict(train(method, start, cohorts, SETTING).named_parameters())
    assert toy.distance(found.params, {name: value.detach() for name, value in wanted.items()}) < 1e-9
    state = found.server.memory.get("margin-softmax", {})
    assert {name: float(value) for name, value in state.items()} == pytest.approx(method.kept, abs=1e-9)
