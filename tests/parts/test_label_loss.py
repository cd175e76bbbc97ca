"""The label loss stands anywhere in the objective: what clients train on for themselves does not depend on order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import toy
from fedra import algorithms as ours
from fedra.algorithms.apfl import MixedTwin
from fedra.algorithms.ditto import TetheredTwin
from fedra.algorithms.fedlc import CalibratedCrossEntropy
from fedra.algorithms.fedprox import Proximal
from fedra.core.algorithm import Algorithm
from fedra.core.tree import flatten
from fedra.errors import ConfigError
from fedra.evaluation.personal_models import personal_job
from fedra.parts import (
    BalancedCrossEntropy,
    CrossEntropy,
    FineTune,
    ModelContrast,
    Output,
    Params,
    Personalizer,
    Term,
    View,
    WeightedMean,
)


def algorithm(*terms: Term, personalize: Personalizer | None = None) -> Algorithm:
    return Algorithm(objective=terms, combine=WeightedMean(), personalize=personalize)


@pytest.mark.parametrize("terms", [(Proximal(0.1), CrossEntropy()), (ModelContrast(), Proximal(), CrossEntropy())])
def test_it_is_found_wherever_it_stands(terms: tuple[Term, ...]) -> None:
    assert algorithm(*terms).label_loss == CrossEntropy()
    assert algorithm(*terms).plus(CalibratedCrossEntropy()).label_loss == CalibratedCrossEntropy()


def test_fine_tuning_trains_on_it() -> None:
    """With the proximal term first, own training once dropped the cross-entropy and changed nothing."""
    first, last = (algorithm(*terms, personalize=FineTune(2)) for terms in _both_orders())
    jobs = [personal_job(toy.job(one), FineTune(2), rounds=1) for one in (first, last)]
    assert [job.algorithm.objective for job in jobs] == [(CrossEntropy(),)] * 2
    moved, same = (toy.run(job, ((0,),)) for job in jobs)
    assert toy.same_bits(moved.params, same.params)
    assert toy.distance(moved.params, toy.start(jobs[0]).params) > 1e-3


@pytest.mark.parametrize("twin", [TetheredTwin(), MixedTwin()], ids=["ditto", "apfl"])
def test_twins_train_on_it(twin: Personalizer) -> None:
    first, last = (toy.run(toy.job(algorithm(*terms, personalize=twin))) for terms in _both_orders())
    mine, theirs = (flatten(history.memory[0][twin.name]) for history in (first, last))
    assert toy.distance(mine, theirs) < 1e-12
    start = toy.start(toy.job(ours.fedavg())).params
    assert not torch.equal(mine["params|head.weight"], start["head.weight"])


def _both_orders() -> tuple[tuple[Term, Term], tuple[Term, Term]]:
    return (Proximal(0.1), CrossEntropy()), (CrossEntropy(), Proximal(0.1))


@dataclass(frozen=True)
class ToyUnmarked(Term):
    """Looks at the data and does not say whether it fits labels."""

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return view.batch.mean(output.logits.square().mean(dim=1))


def test_of_several_terms_without_a_mark_none_is_guessed() -> None:
    assert algorithm(Proximal(), ToyUnmarked()).label_loss == ToyUnmarked()
    unclear = algorithm(ToyUnmarked(), ModelContrast())
    with pytest.raises(ConfigError, match="must be the label loss, got toy-unmarked, model-contrast"):
        replace(unclear, personalize=FineTune())


def test_rare_classes_weigh_as_much_as_frequent_ones() -> None:
    """The mean over a client's examples equals the mean over its classes, each with its own mean loss."""
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(10, 3, generator=draw), torch.tensor([0] * 7 + [2] * 3)
    view = SimpleNamespace(
        client=SimpleNamespace(label_counts=torch.tensor([7, 0, 3])),
        batch=SimpleNamespace(targets=targets, mean=torch.mean),
    )
    output = Output(features=logits, logits=logits)
    each = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    found = BalancedCrossEntropy().loss(output, {}, view)  # type: ignore[arg-type]
    assert found == pytest.approx(float((each[:7].mean() + each[7:].mean()) / 2))
    plain = BalancedCrossEntropy(power=0.0).loss(output, {}, view)  # type: ignore[arg-type]
    assert plain == pytest.approx(float(each.mean()))


def test_a_balanced_loss_takes_the_place_of_the_plain_one_and_can_be_stacked() -> None:
    balanced = ours.fedavg().plus(BalancedCrossEntropy())
    assert balanced.objective == (BalancedCrossEntropy(),)
    work = toy.job(balanced)
    alone, stacked = toy.run(work), toy.run(work, runner="stacked", threads=1)
    assert toy.distance(stacked.params, alone.params) < 1e-9
    assert toy.distance(alone.params, toy.run(toy.job(ours.fedavg())).params) > 1e-4
    assert toy.same_bits(
        toy.run(toy.job(ours.fedavg().plus(BalancedCrossEntropy(0.0)))).params, toy.run(toy.job(ours.fedavg())).params
    )
