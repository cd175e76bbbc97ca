"""How parts become an algorithm, and which choices are refused."""

from __future__ import annotations

import pytest

from fedra.algorithms import fedadam, fedavg, fedlc, fednova, fedprox, fedrs, fedsam, fedsol, moon, scaffold
from fedra.algorithms.feddecorr import Decorrelation
from fedra.algorithms.fedlc import CalibratedCrossEntropy
from fedra.algorithms.fednova import NormalizedMean
from fedra.algorithms.fedopt import ServerAdam, ServerSgd
from fedra.algorithms.fedprox import Proximal
from fedra.algorithms.fedsol import Distillation
from fedra.algorithms.scaffold import ControlVariates
from fedra.core.algorithm import Algorithm
from fedra.core.sharing import Sharing
from fedra.errors import ConfigError
from fedra.parts.combine import Median, PlainMean, WeightedMean
from fedra.parts.gradient import Clip, Perturb
from fedra.parts.objective import CrossEntropy, DynamicRegularizer, ModelContrast


def test_parts_go_into_their_slots() -> None:
    joined = fedavg().plus(Proximal(0.1), Perturb(0.2), Clip(), PlainMean(), ServerSgd(), Sharing(private=("head.",)))
    assert joined.objective == (CrossEntropy(), Proximal(0.1))
    assert joined.gradient == (Perturb(0.2), Clip())
    assert joined.combine == PlainMean()
    assert joined.server == (ServerSgd(),)
    assert joined.sharing == Sharing(private=("head.",))


def test_algorithms_bring_what_differs_from_fedavg() -> None:
    joined = fedprox(mu=0.1).plus(fedsam(rho=0.1), fedadam())
    assert joined == Algorithm(
        (CrossEntropy(), Proximal(0.1)), WeightedMean(), (Perturb(0.1),), (ServerAdam(),), Sharing()
    )


def test_a_plain_mean_of_another_does_not_undo_ours() -> None:
    assert fednova().plus(fedprox()).combine == NormalizedMean()
    assert fedprox().plus(fednova()).combine == NormalizedMean()


def test_joining_twice_is_joining_once() -> None:
    assert scaffold().plus(scaffold()) == scaffold()


def test_a_loss_of_the_labels_takes_the_place_of_cross_entropy() -> None:
    assert fedlc().plus(fedprox(mu=0.1)).objective == (CalibratedCrossEntropy(), Proximal(0.1))
    assert fedprox(mu=0.1).plus(fedlc()).objective == (CalibratedCrossEntropy(), Proximal(0.1))
    assert fedlc().plus(CrossEntropy()).objective == (CrossEntropy(), CalibratedCrossEntropy())
    assert CrossEntropy() not in fedlc().plus(fedrs()).objective


def test_an_objective_is_needed() -> None:
    with pytest.raises(ConfigError, match="at least one term"):
        Algorithm(objective=(), combine=WeightedMean())


def test_an_objective_that_sees_no_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="must depend on the data, got proximal, dynamic-regularizer"):
        Algorithm(objective=(Proximal(), DynamicRegularizer()), combine=WeightedMean())


def test_a_part_in_the_wrong_slot_is_refused() -> None:
    with pytest.raises(ConfigError, match="the slot 'objective' must hold Term parts, got the part 'clip'"):
        Algorithm(objective=(Clip(),), combine=WeightedMean())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: scaffold().plus(ControlVariates(size_aware=True)),
        lambda: moon().plus(ModelContrast(9.0)),
        lambda: fedavg().plus(ServerSgd(), ServerSgd(lr=0.5)),
        lambda: scaffold().plus(fedsol(proximal=ControlVariates(momentum_aware=False))),
    ],
)
def test_two_different_parts_may_not_share_a_memory(make: object) -> None:
    with pytest.raises(
        ConfigError, match=r"must be equal, got two different parts .*: give both the same fields, or remove one"
    ):
        make()  # type: ignore[operator]


def test_equal_parts_in_two_places_are_one() -> None:
    joined = scaffold().plus(fedsol(proximal=ControlVariates()))
    assert list(joined.parts()).count("control-variates") == 1
    assert len([part for part in joined.all_parts() if part.name == "control-variates"]) == 2


@pytest.mark.parametrize("term", [ModelContrast(), Decorrelation()])
def test_a_head_only_perturbation_along_features_is_refused(term: ModelContrast) -> None:
    with pytest.raises(
        ConfigError, match=f"scope must be 'all' or 'body' for a perturbation along '{term.name}', got 'head'"
    ):
        fedsol(proximal=term, scope="head")


@pytest.mark.parametrize("scope", ["head", "body"])
def test_a_frozen_scope_is_refused(scope: str) -> None:
    with pytest.raises(ConfigError, match=f"must name trained parameters, got '{scope}', which is frozen"):
        fedsol(scope=scope).plus(Sharing(frozen=(f"{scope}.",)))  # type: ignore[arg-type]


def test_steps_are_counted_where_a_part_divides_by_them() -> None:
    assert scaffold().counts_steps
    assert fednova().counts_steps
    assert fedsol(proximal=ControlVariates()).counts_steps
    assert not fedavg().plus(Median(), Distillation()).counts_steps


def test_a_clip_of_any_length_is_kept() -> None:
    assert scaffold(clip=10.0).gradient == (Clip(10.0),)
    assert scaffold().gradient == ()
