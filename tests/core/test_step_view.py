"""One local step: how often the body is run, what teachers cost, and gradients under rules that nest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import toy
from fedra.algorithms import fedasam, fedavg, feddyn, fedntd, fedsam, fedsol, fedsol_ablation, moon
from fedra.algorithms.fedntd import NotTrueDistillation
from fedra.algorithms.fedprox import Proximal
from fedra.algorithms.fedsol import Distillation, DriftRadius
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.batches import AsIs
from fedra.core.model import Output
from fedra.core.part import Term
from fedra.core.program import nest
from fedra.core.sharing import Sharing
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.parts.gradient import AlsoDescend, Perturb


@dataclass
class Tally:
    """Passes of the body in training and in evaluation mode, and its backward passes."""

    forward: int = 0
    frozen: int = 0
    backward: int = 0


@contextmanager
def counted(module: nn.Module) -> Iterator[Tally]:
    tally = Tally()

    def passed(body: nn.Module, inputs: Any, output: Tensor) -> None:
        if body.training:
            tally.forward += 1
        else:
            tally.frozen += 1
        if output.requires_grad:
            output.register_hook(lambda slope: setattr(tally, "backward", tally.backward + 1))  # type: ignore[no-untyped-call]

    handle = module.body.register_forward_hook(passed)  # type: ignore[union-attr]
    yield tally
    handle.remove()


@dataclass(frozen=True)
class Drawn(AsIs):
    """Inputs that count as augmented."""

    deterministic: bool = False


STEPS = sum(toy.LOCAL.steps(size) for size in toy.SIZES)


@pytest.mark.parametrize(
    ("algorithm", "passes"),
    [
        (fedavg(), 1),
        (fedsol(scope="head"), 1),
        (fedsol(scope="head", radius="adaptive"), 1),
        (fedsol(scope="all"), 2),
        (fedsol(scope="body"), 2),
        (fedsol(proximal=Proximal()), 1),
        (fedsam(), 2),
        (feddyn(), 1),
    ],
)
def test_how_often_the_body_runs(algorithm: Algorithm, passes: int) -> None:
    work = toy.job(algorithm)
    with counted(work.model.module) as tally:
        toy.run(work, ((0, 1, 2),))
    assert tally.forward == passes * STEPS
    assert tally.backward == passes * STEPS


@pytest.mark.parametrize(("algorithm", "teachers"), [(fedsol(), 1), (fedntd(), 1), (moon(), 2), (fedavg(), 0)])
def test_teachers_speak_once_a_round_or_once_a_step(algorithm: Algorithm, teachers: int) -> None:
    for transform, times in ((AsIs(), len(toy.SIZES)), (Drawn(), STEPS)):
        work = toy.job(algorithm, data=toy.clients(transform=transform))
        with counted(work.model.module) as tally:
            toy.run(work, ((0, 1, 2),))
        assert tally.frozen == teachers * times


def test_batch_statistics_are_never_looked_up() -> None:
    work = toy.job(fedsol(), toy.conv(track=False))
    with counted(work.model.module) as tally:
        toy.run(work, ((0, 1, 2),))
    assert tally.frozen == STEPS


def test_looking_up_is_asking() -> None:
    looked, asked = (toy.run(toy.job(moon(mu=2.0), data=toy.clients(transform=t))) for t in (AsIs(), Drawn()))
    assert toy.distance(looked.params, asked.params) < 1e-13


def plain(scene: toy.Scene, algorithm: Algorithm) -> Params:
    """The same rules on a view that keeps no features between passes."""

    class Forgetful(View):
        def _output(self, params: Params, head_only: bool) -> Output:
            return super()._output(params, head_only=False)

    view = scene.view()
    shown = {"model": view.model, "client": view.client, "batch": view.batch, "buffers": view.buffers}
    forgetful = Forgetful(**shown, teachers=view.teachers)  # type: ignore[arg-type]
    return nest(algorithm, forgetful)(scene.params)


HEAD = Perturb(0.4, Distillation(), scope="head")
NESTINGS = {
    "head": (HEAD,),
    "descend outside": (AlsoDescend(NotTrueDistillation(), 0.5), HEAD),
    "descend inside": (HEAD, AlsoDescend(NotTrueDistillation(), 0.5)),
    "descend through": (AlsoDescend(NotTrueDistillation(), 0.5, HEAD), HEAD),
    "head in all": (Perturb(0.3), HEAD),
    "head in body": (Perturb(0.3, Distillation(), scope="body"), HEAD),
    "all in head": (HEAD, Perturb(0.3)),
    "closed form in head": (HEAD, Perturb(0.3, Proximal(), scope="body")),
    "head in head": (HEAD, Perturb(0.2, NotTrueDistillation(), DriftRadius(), "head")),
    "three": (AlsoDescend(Distillation()), Perturb(0.3), HEAD),
}


@pytest.mark.parametrize("module", [toy.mlp(), toy.conv()], ids=["mlp", "conv"])
@pytest.mark.parametrize("frozen", [(), ("body.0.bias",)], ids=["all", "partly frozen"])
@pytest.mark.parametrize("rules", NESTINGS.values(), ids=NESTINGS)
def test_kept_features_never_change_a_gradient(
    rules: tuple[Any, ...], frozen: tuple[str, ...], module: toy.Net
) -> None:
    algorithm = replace(fedavg(), gradient=rules, sharing=Sharing(frozen=frozen))
    scene = toy.scene(algorithm, module, stir=0.3)
    found = nest(algorithm, scene.view())(scene.params)
    assert toy.distance(found, plain(scene, algorithm)) < 1e-14


@pytest.mark.parametrize("rules", NESTINGS.values(), ids=NESTINGS)
def test_by_function_transform_it_is_the_same(rules: tuple[Any, ...]) -> None:
    algorithm = replace(fedavg().plus(Proximal(0.3)), gradient=rules)
    scene = toy.scene(algorithm, toy.conv(), stir=0.3)
    view, other = scene.view(), scene.view(functional=True)
    found = nest(algorithm, view)(scene.params)
    assert toy.distance(found, nest(algorithm, other)(tree.clone(scene.params))) < 1e-14
    assert view.trace.loss is not None
    assert other.trace.loss is not None
    assert float(view.trace.loss) == pytest.approx(float(other.trace.loss), rel=1e-12)
    assert toy.distance(view.trace.buffers or {}, other.trace.buffers or {}) < 1e-14


@pytest.mark.parametrize(
    "algorithm", [fedsam(), fedasam(), fedsol(), fedsol(scope="head"), fedsol_ablation(variant="A6")]
)
def test_the_gradient_carries_no_graph_and_the_weights_are_not_moved_by_it(algorithm: Algorithm) -> None:
    scene = toy.scene(algorithm, stir=0.3)
    before = tree.clone(scene.params)
    slope = nest(algorithm, scene.view())(scene.params)
    assert not any(value.requires_grad for value in slope.values())
    assert toy.same_bits(tree.clone(scene.params), before)


@dataclass(frozen=True)
class ToySum(Term):
    """A gradient that autograd hands out as one number for all entries."""

    formula: ClassVar[str] = "sum of the head's bias"

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return params["head.bias"].sum()


def test_a_closed_form_adds_to_a_gradient_of_one_number() -> None:
    scene = toy.scene(fedavg(), stir=0.3)
    slope = scene.view().gradient([ToySum(), Proximal(0.5)], scene.params)
    moved = scene.params["head.bias"] - scene.client.origin.params["head.bias"]
    assert torch.allclose(slope["head.bias"], 1 + 0.5 * moved, rtol=0, atol=1e-15)


def test_an_error_carries_round_client_and_step() -> None:
    work = toy.job(fedavg().plus(ToyTrap()))
    with pytest.raises(ZeroDivisionError) as caught:
        toy.run(work)
    assert caught.value.__notes__ == ["at local step 2", "in round 1, client 0"]


@dataclass(frozen=True)
class ToyTrap(Term):
    """Fails on the incomplete batch."""

    formula: ClassVar[str] = "none"

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return output.logits.sum() * (1 // (len(view.batch.targets) // 4))


def test_the_first_loss_that_is_no_number_is_reported() -> None:
    work = toy.job(fedavg(), local=replace(toy.LOCAL, lr=1e200))
    uploads = toy.run(work, ((0,),)).uploads
    assert uploads[0].broken_step is not None
    assert uploads[0].broken_step > 0
    assert toy.run(toy.job(fedavg()), ((0,),)).uploads[0].broken_step is None


def test_dropout_draws_from_its_place_alone() -> None:
    net = toy.Net(nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5)), nn.Linear(6, toy.CLASSES)).double()
    work = toy.job(fedavg(), net)
    with torch.random.fork_rng():
        first = toy.run(work, ((0, 1),))
        torch.random.manual_seed(5)
        again = toy.run(work, ((1, 0),))
    assert toy.same_bits(first.uploads[0].delta, again.uploads[1].delta)
