"""Gradient accumulation: the whole batch's gradient from portions of it, on every runner and inside any rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import toy
from fedra.algorithms import fedarc, fedavg, fedlc, fedntd, fedprox, fedsam, fedsol, moon, scaffold
from fedra.algorithms.fedprox import Proximal
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.step_views import iterate_chunks
from fedra.core.tree import Params
from fedra.errors import ConfigError
from fedra.parts.gradient import Accumulate, Clip

ALGORITHMS = {
    "fedavg": fedavg(),
    "fedarc": fedarc(),
    "fedlc": fedlc(),
    "fedprox": fedprox(mu=0.5),
    "fedntd": fedntd(),
    "moon": moon(),
    "scaffold": scaffold(),
    "fedsam": fedsam(rho=0.3),
    "fedsol": fedsol(rho=0.3),
    "fedsol head": fedsol(rho=0.3, scope="head"),
    "fedsol proximal": fedsol(rho=0.3, proximal=Proximal()),
    "clipped": fedavg().plus(Clip(0.01)),
}
LOCAL = replace(toy.LOCAL, epochs=2, batch=7)


@pytest.mark.parametrize("passes", [2, 3, 7, 50])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_rounds_are_those_of_the_whole_batch(name: str, passes: int) -> None:
    algorithm = ALGORITHMS[name]
    whole, cut = (toy.run(toy.job(one, local=LOCAL)) for one in (algorithm, algorithm.plus(Accumulate(passes))))
    assert toy.distance(cut.params, whole.params) < 1e-12
    for left, right in zip(whole.uploads, cut.uploads, strict=True):
        assert right.metrics == pytest.approx(left.metrics, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("functional", [False, True])
def test_the_gradient_is_that_of_the_whole_batch(functional: bool) -> None:
    scene = toy.scene(fedarc(), local=LOCAL, stir=0.3)
    whole = scene.view(functional).gradient(scene.work.algorithm.objective, scene.params)
    view = scene.view(functional)
    cut = Accumulate(3).gradient(
        lambda params: view.gradient(scene.work.algorithm.objective, params), scene.params, view
    )
    assert toy.distance(cut, whole) < 1e-12


@pytest.mark.parametrize(
    ("passes", "sizes"), [(1, [7]), (2, [3, 4]), (3, [2, 2, 3]), (5, [1, 1, 2, 1, 2]), (7, [1] * 7), (99, [1] * 7)]
)
def test_portions_are_nearly_equal_and_never_empty(passes: int, sizes: list[int]) -> None:
    scene = toy.scene(fedavg(), local=LOCAL)
    view, seen = scene.view(), []
    for share in iterate_chunks(view, passes):
        seen.append(len(view.batch.targets))
        assert share == seen[-1] / 7
    assert seen == sizes
    assert len(view.batch.targets) == 7


@pytest.mark.parametrize("name", ["fedavg", "fedarc", "fedntd", "moon", "scaffold", "fedsam", "fedsol"])
def test_stacked_clients_accumulate_as_in_sequence(name: str) -> None:
    """Batches of unequal clients are padded there, so that a portion may hold nothing but padding."""
    work = toy.job(ALGORITHMS[name].plus(Accumulate(3)), local=LOCAL)
    alone, stacked = toy.run(work), toy.run(work, runner="stacked", threads=1)
    assert toy.distance(stacked.params, alone.params) < 1e-9


def test_batch_normalization_sees_portions() -> None:
    """Running statistics move with every portion, as if each were a step without a move of the weights."""
    scene = toy.scene(fedavg().plus(Accumulate(2)), toy.conv(), local=LOCAL)
    batch, before = scene.batch, scene.buffers["body.1.running_mean"].clone()
    body = scene.work.model.module.get_submodule("body.0")
    with torch.no_grad():
        means = [body(part).mean(dim=(0, 2, 3)) for part in (batch.inputs[:3], batch.inputs[3:])]
    expected = before
    for mean in means:
        expected = 0.9 * expected + 0.1 * mean
    scene.step()
    assert torch.allclose(scene.buffers["body.1.running_mean"], expected, atol=1e-12)
    assert int(scene.buffers["body.1.num_batches_tracked"]) == 2


def test_perturbed_portions_leave_no_trace_in_running_statistics() -> None:
    plain, moved = (
        toy.scene(algorithm.plus(Accumulate(2)), toy.conv(), local=LOCAL) for algorithm in (fedavg(), fedsam(rho=5.0))
    )
    plain.step()
    moved.step()
    assert toy.same_bits(plain.buffers, moved.buffers)


def test_an_error_leaves_the_view_whole() -> None:
    scene = toy.scene(fedavg(), local=LOCAL)
    view = scene.view()

    def fail(params: Params) -> Params:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        Accumulate(2).gradient(fail, scene.params, view)
    assert len(view.batch.targets) == 7


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (lambda: fedavg().plus(Accumulate(2), Clip()), "list it after 'clip'"),
        (lambda: fedavg().plus(Accumulate(2)).plus(fedsam()), "list it after 'perturb'"),
        (lambda: fedavg().plus(Accumulate(2), Accumulate(3)), "list it after 'accumulate'"),
    ],
)
def test_nothing_may_stand_inside_it(algorithm: Callable[[], Algorithm], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"'accumulate' must be the last gradient rule,.*{sentence}"):
        algorithm()


def test_there_is_at_least_one_pass() -> None:
    with pytest.raises(ConfigError, match="the field 'passes' of the part 'accumulate' must be at least 1, got 0"):
        Accumulate(0)


def test_one_pass_changes_no_bit() -> None:
    scene = toy.scene(fedavg(), stir=0.3)
    view, objective = scene.view(), scene.work.algorithm.objective
    whole = view.gradient(objective, scene.params)
    again = Accumulate(1).gradient(lambda params: view.gradient(objective, params), scene.params, view)
    assert toy.same_bits(tree.clone(whole), tree.clone(again))
