"""Learning rates by parameter name (`lr_of`), against plain loops with torch's parameter groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_against_naive as averaged
import test_owned_against_naive as owned
import test_personal_against_naive as personal
import torch
from naive import Setting, train
from naive_personal import federate
from torch import nn

import fedra
import tiny
import toy
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.core.local_training import LocalTraining
from fedra.core.optimizer import Adam, Sgd
from fedra.core.rates import cosine
from fedra.core.tree import Params
from fedra.errors import ConfigError
from fedra.parts.personalize import FineTune

RATES = {"head.": 0.02, "head.bias": 0.3}
LOCAL = replace(toy.LOCAL, lr_of=RATES)


@pytest.fixture(autouse=True)
def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Curves, "on_run_end", Callback.on_run_end)


def params_of(net: nn.Module) -> Params:
    return {name: value.detach() for name, value in net.named_parameters()}


VARIED = [case for case in averaged.CASES if "sol-" not in case.name or case.name == "fedsol-variates"]


@pytest.mark.parametrize("case", VARIED, ids=lambda case: case.name)
@pytest.mark.parametrize("runner", ["sequential", "stacked"])
def test_averaged_models(case: averaged.Case, runner: str) -> None:
    setting = replace(averaged.SETTING, lr_of=RATES)
    work = toy.job(case.algorithm, local=LOCAL)
    found = toy.run(work, averaged.LATECOMER, runner).params
    start = averaged.create(case.algorithm)
    wanted = params_of(train(case.make(), start, averaged.LATECOMER, setting))
    assert toy.distance(found, wanted) < 1e-9
    same = toy.run(toy.job(case.algorithm), averaged.LATECOMER).params
    assert (toy.distance(found, same) > 1e-3) == (case.name != "fedbabu")  # which does not train its head


@pytest.mark.parametrize("case", owned.CASES, ids=lambda case: case.name)
def test_owned_class_vectors(case: owned.Case) -> None:
    data = toy.sharers()
    work = toy.job(case.algorithm, data=data, local=LOCAL)
    net = toy.mlp()
    net.load_state_dict(toy.start(work).params)
    wanted = train(case.make(), net, owned.LATECOMER, replace(owned.setting(data), lr_of=RATES))
    assert toy.distance(toy.run(work, owned.LATECOMER).params, params_of(wanted)) < 1e-9


@pytest.mark.parametrize("case", personal.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("runner", ["sequential", "stacked"])
def test_personal_models(case: personal.Case, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "LOCAL", LOCAL)
    monkeypatch.setattr(toy.job, "__defaults__", (None, None, LOCAL, toy.SEED))
    method = case.make()
    server = federate(method, toy.mlp(), personal.COHORTS, replace(personal.setting(), lr_of=RATES))
    found, own = personal.owned(case.algorithm, runner)
    assert toy.distance(found, params_of(server)) < 1e-9
    for client in range(3):
        assert toy.distance(own[client], params_of(method.own(client, server))) < 1e-9


@pytest.mark.parametrize("order", ["first", "hessian-free"])
def test_a_meta_step_has_the_rates_of_its_parameters(order: Any) -> None:
    """Without a rate of its own, the inner step is the optimizer's, and H multiplies the step, not the gradient."""
    setting = replace(personal.setting(), lr_of=RATES)
    delta = None if order == "first" else 1e-2
    algorithm = fedra.algorithms.per_fedavg(order=order, delta=delta or 1e-3)
    wanted = federate(personal.Meta(delta=delta), toy.mlp(), ((0, 1, 2),), setting)
    found = toy.run(toy.job(algorithm, local=LOCAL), ((0, 1, 2),)).params
    assert toy.distance(found, params_of(wanted)) < 1e-9
    exact = federate(personal.Meta(hessian=order != "first"), toy.mlp(), ((0, 1, 2),), setting)
    assert toy.distance(found, params_of(exact)) < 1e-4


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (Sgd(0.1, factors=(("b", 5.0),)), torch.optim.SGD, {}),
        (Sgd(0.1, 0.9, 0.2, factors=(("b", 5.0),)), torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.2}),
        (Sgd(0.1, 0.0, 0.2, factors=(("b", 5.0),)), torch.optim.SGD, {"weight_decay": 0.2}),
        (Adam(0.1, 0.2, factors=(("b", 5.0),)), torch.optim.Adam, {"weight_decay": 0.2}),
    ],
)
def test_steps_as_torch_s_groups_do(ours: Any, theirs: Any, settings: dict[str, float]) -> None:
    draw = torch.Generator().manual_seed(0)
    start = {name: torch.randn(6, generator=draw, dtype=torch.float64) for name in ("a", "b")}
    reference = {name: nn.Parameter(value.clone()) for name, value in start.items()}
    groups = [{"params": [reference["a"]]}, {"params": [reference["b"]], "lr": 0.5}]
    optimizer = theirs(groups, lr=0.1, **settings)
    params, state = {name: value.clone() for name, value in start.items()}, ours.init(start)
    for _ in range(7):
        gradient = {name: torch.randn(6, generator=draw, dtype=torch.float64) for name in start}
        state = ours.step(params, gradient, state)
        for name, value in gradient.items():
            reference[name].grad = value
        optimizer.step()
    assert toy.distance(params, {name: value.detach() for name, value in reference.items()}) < 1e-13


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_decay_and_schedule_apply_to_all_rates(optimizer: Any) -> None:
    local = LocalTraining(lr=0.1, lr_of={"head.": 0.5}, lr_decay=0.5, optimizer=optimizer)
    assert local.at(2).lr_of("head.weight") == pytest.approx(0.125)
    assert local.at(2).lr_of("body.weight") == pytest.approx(0.025)
    curve = LocalTraining(lr=0.1, lr_of={"head.": 0.5}, schedule=cosine, rounds=4, optimizer=optimizer)
    assert curve.at(2).lr_of("head.weight") == pytest.approx(0.25)


def test_the_longest_prefix_counts() -> None:
    orders = [{"": 4.0, "head.": 1.0, "head.bias": 2.0}, {"head.bias": 2.0, "head.": 1.0, "": 4.0}]
    for rates in orders:
        found = LocalTraining(lr=0.5, lr_of=rates).at(0)
        assert [found.lr_of(name) for name in ("head.bias", "head.weight", "body.0")] == [2.0, 1.0, 4.0]


def test_equal_rates_have_equal_bits() -> None:
    one = toy.run(toy.job(fedra.algorithms.scaffold()))
    other = toy.run(toy.job(fedra.algorithms.scaffold(), local=replace(toy.LOCAL, lr_of={"head.": toy.LOCAL.lr})))
    assert toy.same_bits(one.params, other.params)


def test_personal_training_keeps_the_ratio_unless_it_has_a_rate_of_its_own() -> None:
    local = LocalTraining(lr=0.1, lr_of={"head.": 0.5}, lr_decay=0.5)
    last, first = FineTune().training(local, 3), FineTune(initial_rate=True).training(local, 3)
    assert (last.lr, last.lr_of) == (pytest.approx(0.0125), {"head.": pytest.approx(0.0625)})
    assert (first.lr, first.lr_of) == (0.1, {"head.": 0.5})
    assert FineTune(lr=0.3).training(local, 3).at(5) == Sgd(0.3)


def run(**settings: Any) -> Params:
    table = tiny.table(rounds=2, precision="float64", **settings)
    return {name: value.detach() for name, value in fedra.run(table).model.named_parameters()}


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam"}, {"schedule": {"name": "cosine", "floor": 0.1}}])
def test_runners_agree(settings: dict[str, Any]) -> None:
    local = {"lr_of": {"head.": 0.02}, **settings}
    wanted = run(local=local)
    for runner in ("processes", "stacked"):
        assert toy.distance(run(local=local, runner={"name": runner}), wanted) < 1e-9
    assert toy.distance(run(local=settings), wanted) > 1e-3


@pytest.mark.parametrize("name", ["scaffold", "fednova", "ditto"])
def test_whole_runs_of_methods_that_use_the_rate(name: str) -> None:
    """Extras pass the check of uploads, on every runner."""
    algorithm = {"name": name, **({"control": "correct"} if name == "fednova" else {})}
    wanted = run(algorithm=algorithm, local={"lr_of": {"head.": 0.02}})
    for runner in ("processes", "stacked"):
        found = run(algorithm=algorithm, local={"lr_of": {"head.": 0.02}}, runner={"name": runner})
        assert toy.distance(found, wanted) < 1e-9


def test_centralized_training_has_the_rates() -> None:
    """One full batch per epoch: two steps of gradient descent on the pooled examples."""
    local = {"lr_of": {"head.": 1e-12}, "batch": None, "momentum": 0.0}
    pinned, free = run(mode="centralized", local=local), run(mode="centralized", local={"batch": None})
    experiment = fedra.Experiment.from_config(tiny.table(precision="float64"))
    start = experiment._build(experiment.config).job.initial().params
    assert (pinned["head.weight"] - start["head.weight"]).abs().max() < 1e-9
    assert (free["head.weight"] - start["head.weight"]).abs().max() > 1e-3
    assert toy.distance(pinned, free) > 1e-4


def test_no_rates_leave_the_bits(tmp_path: Path) -> None:
    fedra.run(tiny.table(algorithm={"name": "scaffold"}), out=tmp_path / "a")
    fedra.run(tiny.table(algorithm={"name": "scaffold"}, local={"lr_of": {}}), out=tmp_path / "b")
    assert tiny.record(tmp_path / "a") == tiny.record(tmp_path / "b")


def test_rates_are_stored_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_text("")
    words = ["run", tmp_path / "c.toml", *tiny.WORDS, 'local.lr_of={"head."=0.02}', "--out", tmp_path / "run"]
    assert tiny.call(capsys, *words)[0] == 0
    assert '"head." = 0.02' in (tmp_path / "run" / "config.toml").read_text()
    fedra.run(tiny.table(local={"lr_of": {"head.": 0.02}}), out=tmp_path / "dict")
    assert tiny.record(tmp_path / "run") == tiny.record(tmp_path / "dict")


@pytest.mark.parametrize(
    ("local", "algorithm", "told"),
    [
        ({"lr_of": {"haed.": 0.1}}, "fedavg", r"must match a parameter .* got 'haed\.': did you mean 'head\.'"),
        ({"lr_of": {"head.": 0.0}}, "fedavg", r"local\.lr_of must be greater than 0, got 0\.0"),
        ({"lr_of": {"head.": 0.1}}, {"name": "fedpe", "fixed": True}, r"local\.lr_of must be trained, got 'head\.'"),
    ],
)
def test_mistakes(tmp_path: Path, local: dict[str, Any], algorithm: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        fedra.run(tiny.table(local=local, algorithm=algorithm), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_personalizer_may_train_what_rounds_freeze() -> None:
    found = run(algorithm={"name": "fedbabu"}, local={"lr_of": {"head.": 0.02}})
    assert toy.distance(found, run(algorithm={"name": "fedbabu"})) == 0


def clients() -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
    return [(own.inputs, own.targets) for own in toy.clients().examples]


def test_python_takes_the_rates_with_local_or_alone() -> None:
    settings: dict[str, Any] = {"rounds": 1, "runner": "sequential"}
    one = fedra.simulate(fedra.algorithms.fedavg(), toy.mlp(), clients(), lr=0.1, lr_of={"head.": 0.5}, **settings)
    local = fedra.LocalTraining(lr=0.1, lr_of={"head.": 0.5})
    other = fedra.simulate(fedra.algorithms.fedavg(), toy.mlp(), clients(), local=local, **settings)
    assert toy.same_bits(params_of(one.model), params_of(other.model))
    plain = fedra.simulate(fedra.algorithms.fedavg(), toy.mlp(), clients(), lr=0.1, **settings)
    assert toy.distance(params_of(one.model), params_of(plain.model)) > 1e-4
    with pytest.raises(ConfigError, match=r"got local and lr_of"):
        fedra.simulate(fedra.algorithms.fedavg(), toy.mlp(), clients(), local=local, lr_of={"head.": 0.5}, **settings)


def test_the_plain_loop_has_the_rates() -> None:
    """The counterpart itself: one full-batch step moves the head by its own rate."""
    data = [(own.inputs, own.targets) for own in toy.clients().examples]
    net = toy.mlp()
    gradient = torch.autograd.grad(
        nn.functional.cross_entropy(net.head(net.body(data[0][0])), data[0][1]),
        list(net.parameters()),  # type: ignore[operator]
    )
    setting = Setting(data, 0, 1, 100, 0.1, 1.0, 0.0, 0.0, {"head.": 0.5})
    moved = train(averaged.Method(), net, ((0,),), setting)
    rates = [0.1, 0.1, 0.5, 0.5]
    for before, after, g, rate in zip(net.parameters(), moved.parameters(), gradient, rates, strict=True):
        assert torch.allclose(after, before - rate * g, rtol=0, atol=1e-12)
