"""What a part carries from one local step to the next, what it draws, whom it listens to, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import toy
from fedra.algorithms import fedavg, fedntd, fedsam, fedsol, moon
from fedra.algorithms.fedsol import Distillation
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ClientState, StepDraws, StepState, Teachers
from fedra.core.model import Output, Weights
from fedra.core.part import GradientFunction, GradientRule, Term, known_parts
from fedra.core.program import nest
from fedra.core.tree import Params, Tree
from fedra.core.view import Client, Local, View
from fedra.data.clients import SeparateClients
from fedra.errors import ConfigError, DataError

RUNNERS = ("sequential", "stacked", "processes")
SETTINGS = {"sequential": {"threads": 1}, "stacked": {"threads": 1}, "processes": {"workers": 2}}


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """The parts of this file are no parts of the package."""
    yield
    for name in [name for name, kind in known_parts().items() if kind.__module__ == __name__]:
        del known_parts()[name]


@dataclass(frozen=True)
class ToyWalk(Term, ClientState, StepState):
    """Sums the logits' means over all steps a client ever took, and pulls by a part of the sum."""

    formula: ClassVar[str] = "sum of the past * mean z"

    def init_client(self, origin: Weights) -> Tree:
        return {"past": {"sum": origin.params["head.bias"].new_zeros(())}}

    def init_steps(self, client: Client) -> Tree:
        return client.memory[self.name]["past"]

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        means = view.batch.mean(output.logits.mean(dim=1))
        view.carry(self.name, {"sum": view.carried[self.name]["sum"] + means + 1})
        return 0.01 * view.carried[self.name]["sum"] * means

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {"past": local.carried[self.name]}, {"sum": local.carried[self.name]["sum"]}


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_is_carried_reaches_the_next_step_the_upload_and_the_next_round(runner: str) -> None:
    work = toy.job(fedavg().plus(ToyWalk()))
    found = toy.run(work, ((0, 1, 2), (2, 0)), runner, **SETTINGS[runner])
    wanted = toy.run(work, ((0, 1, 2), (2, 0)))
    for mine, theirs in zip(found.uploads, wanted.uploads, strict=True):
        assert float(mine.extras["toy-walk"]["sum"]) == pytest.approx(float(theirs.extras["toy-walk"]["sum"]), rel=1e-9)
    assert toy.distance(found.params, wanted.params) < 1e-9
    last = {place: float(wanted.uploads[place].extras["toy-walk"]["sum"]) for place in (0, 4)}
    assert last[4] > last[0] > wanted.uploads[0].steps / 2
    assert float(found.memory[0]["toy-walk"]["past"]["sum"]) == pytest.approx(last[4], rel=1e-9)


@pytest.mark.parametrize("rho", [0.0, 3.0])
@pytest.mark.parametrize("functional", [False, True])
def test_the_first_of_several_passes_counts(rho: float, functional: bool) -> None:
    algorithm = fedavg().plus(ToyWalk(), fedsam(rho=rho))
    scene = toy.scene(algorithm, stir=0.3)
    view = scene.view(functional)
    nest(algorithm, view)(scene.params)
    logits = scene.work.model.output(Weights(scene.params, {}), scene.batch.inputs).logits
    before = float(scene.state["carried"]["toy-walk"]["sum"])
    assert float(view.trace.carried["toy-walk"]["sum"]) == pytest.approx(before + float(logits.mean()) + 1, rel=1e-12)
    assert not view.trace.carried["toy-walk"]["sum"].requires_grad


def test_a_value_leaves_no_trace() -> None:
    scene = toy.scene(fedavg().plus(ToyWalk()), toy.conv(), stir=0.3)
    view = scene.view()
    view.value(ToyWalk(), scene.params)
    assert (view.trace.carried, view.trace.buffers, view.trace.logs) == ({}, None, {})


@dataclass(frozen=True)
class ToyGrowth(GradientRule, StepState):
    """Carries more than it began with."""

    formula: ClassVar[str] = "g -> g"

    def init_steps(self, client: Client) -> Tree:
        return {"one": torch.zeros(1)}

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        view.carry(self.name, {"one": torch.zeros(2)})
        return inner(params)


def test_what_is_carried_keeps_its_shape() -> None:
    with pytest.raises(ConfigError, match="carried by the part 'toy-growth' must keep their names and shapes"):
        toy.run(toy.job(fedavg().plus(ToyGrowth())))


@dataclass(frozen=True)
class ToyNoise(Term, StepDraws):
    """Random weights of the examples."""

    rows: int | None = None
    formula: ClassVar[str] = "mean_i r_i z_i"

    def draw(self, examples: int, generator: torch.Generator) -> Tree:
        return {"noise": torch.randn(self.rows or examples, 2, generator=generator)}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return view.batch.mean(view.batch.drawn[self.name]["noise"].sum(dim=1) * output.logits.mean(dim=1))


@pytest.mark.parametrize("module", [toy.mlp, toy.conv])
@pytest.mark.parametrize("runner", RUNNERS)
def test_every_runner_draws_alike(runner: str, module: type[toy.Net]) -> None:
    work = toy.job(fedavg().plus(ToyNoise()), module())
    found = toy.run(work, ((0, 1, 2), (2, 1)), runner, **SETTINGS[runner]).params
    assert toy.distance(found, toy.run(work, ((0, 1, 2), (2, 1))).params) < 1e-9
    assert toy.distance(found, toy.run(replace(work, seed=8), ((0, 1, 2), (2, 1))).params) > 1e-3


def test_a_draw_has_one_row_for_each_example() -> None:
    with pytest.raises(
        ConfigError, match=r"draw of the part 'toy-noise' must return one row per example \(4\), got shape \(3, 2\)"
    ):
        toy.run(toy.job(fedavg().plus(ToyNoise(rows=3))))


def test_two_parts_that_would_share_a_stream_are_refused() -> None:
    with pytest.raises(ConfigError, match="two different parts 'toy-noise'"):
        fedavg().plus(ToyNoise(), ToyNoise(rows=3))


@dataclass(frozen=True)
class ToyPupil(Term, Teachers):
    """Listens to a model of its own, under a name that others use too."""

    factor: float = 2.0
    formula: ClassVar[str] = "mean ||z - z_teacher||^2"

    def teachers(self, client: Client) -> dict[str, Weights]:
        louder = {name: self.factor * value for name, value in client.origin.params.items()}
        return {"origin": Weights(louder, client.origin.buffers)}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        teacher = view.teachers[self.name]["origin"].logits
        return 0.01 * view.batch.mean((output.logits - teacher).square().sum(dim=1))


@pytest.mark.parametrize("runner", RUNNERS)
def test_teachers_of_one_name_are_each_their_parts_own(runner: str) -> None:
    together = fedavg().plus(Distillation(), ToyPupil())
    view = toy.scene(together).view()
    said = {part: outputs["origin"].logits for part, outputs in view.teachers.items()}
    assert not torch.allclose(said["distillation"], said["toy-pupil"])
    orders = [together, fedavg().plus(ToyPupil(), Distillation())]
    found = [toy.run(toy.job(algorithm), runner=runner, **SETTINGS[runner]).params for algorithm in orders]
    assert toy.distance(*found) < 1e-9


def test_one_name_of_one_part_is_one_model() -> None:
    with pytest.raises(ConfigError, match="must be unique, got 'origin' for different models in two parts 'toy-pupil'"):
        toy.run(toy.job(fedavg().plus(ToyPupil(), ToyPupil(factor=3.0))))


@pytest.mark.parametrize("algorithm", [fedntd().plus(fedsol()), moon().plus(fedntd())])
def test_the_received_model_speaks_once_for_all(algorithm: Algorithm) -> None:
    outputs = toy.scene(algorithm).view().teachers
    assert len(outputs) == 2
    assert len({id(named["origin"]) for named in outputs.values()}) == 1


@pytest.mark.parametrize("label", [-1, toy.CLASSES])
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_label_without_a_class_is_told(runner: str, label: int) -> None:
    own = list(toy.clients().examples)
    own[1] = replace(own[1], targets=own[1].targets.index_fill(0, torch.tensor([2]), label))
    with pytest.raises(DataError, match=rf"between 0 and 3 \(4 classes\), got {label} in client 1"):
        toy.run(toy.job(fedavg(), data=SeparateClients(own)), runner=runner, **SETTINGS[runner])


@dataclass(frozen=True)
class ToyBlast(Term, StepState):
    """Not a number from the second step on."""

    formula: ClassVar[str] = "nan"

    def init_steps(self, client: Client) -> Tree:
        return {"steps": torch.zeros(())}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        steps = view.carried[self.name]["steps"]
        view.carry(self.name, {"steps": steps + 1})
        return output.logits.mean() * torch.where(steps > 0, torch.nan, 1.0)


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_term_that_is_not_finite_shows_in_the_figures(runner: str) -> None:
    upload = toy.run(toy.job(fedavg().plus(ToyBlast())), ((0,),), runner, **SETTINGS[runner]).uploads[0]
    assert upload.broken_step == 1
    assert upload.metrics["train_loss/toy-blast"] == torch.inf
