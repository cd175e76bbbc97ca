"""Example-level privacy: the gradient rule by itself, its batches and accounts, and whole runs."""

import base64
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedra
from fedra.algorithms import (
    fedarc,
    fedavg,
    fedbabu,
    feddecorr,
    feddyn,
    fednova,
    fedntd,
    fedper,
    fedprox,
    fedrep,
    fedsam,
    fedsol,
    moon,
    scaffold,
)
from fedra.core.local_training import LocalTraining
from fedra.core.poisson_batches import PoissonBatches
from fedra.core.private_steps import client_secret, with_key
from fedra.core.random import scoped_seed
from fedra.core.secret_numbers import Secret
from fedra.errors import ConfigError
from fedra.experiment import private_run
from fedra.experiment.vetting import vet_examples
from fedra.parts import Accumulate, Clip, PrivateGradient
from fedra.privacy.accounting import Mechanism
from fedra.privacy.example_level import ExampleAccount, Exposure, exposure_of, noise_for_examples
from fedra.runners import RUNNERS
from toy import CLASSES, LOCAL, Net, clients, conv, job, mlp, start

SECRET = Secret(bytes(range(32)))
EQUAL = (12, 8, 16)
"""Sizes that a batch of four divides, so that every batch has the expected size."""


class Keyed:
    """A runner whose clients get their keys, as a run provides them."""

    def __init__(self, runner, algorithm):
        self.runner, self.algorithm = runner, algorithm

    def train(self, round, origin, received, cohort, memory):
        def keyed(client):
            return with_key(self.algorithm, memory(client), SECRET.derive("client", round, client))

        return self.runner.train(round, origin, received, cohort, keyed)


def private(algorithm, **fields):
    return replace(algorithm, gradient=(PrivateGradient(**{"batch": 4, **fields}), *algorithm.gradient))


def trained(algorithm, runner="sequential", local=LOCAL, module=None, data=None):
    work = job(algorithm, module, data, local)
    history, made = start(work), RUNNERS[runner](work)
    try:
        for number in range(2):
            history.round(Keyed(made, algorithm), work, number, range(len(work.clients)))
    finally:
        made.close()
    return history.params


def distance(left, right):
    return max((value - right[name]).abs().max().item() for name, value in left.items())


REDUCED = {
    "fedavg": fedavg,
    "fedprox": lambda: fedprox(mu=0.1),
    "scaffold": scaffold,
    "feddyn": feddyn,
    "fednova": fednova,
    "moon": moon,
    "fedntd": fedntd,
    "fedarc": fedarc,
    "fedbabu": fedbabu,
    "fedper": fedper,
    "fedrep": fedrep,
}


@pytest.mark.parametrize("chunk", [1, 3], ids=["one by one", "in chunks"])
@pytest.mark.parametrize("method", REDUCED.values(), ids=REDUCED)
def test_an_endless_clip_without_noise_is_the_plain_gradient(method, chunk):
    data = clients(sizes=EQUAL)
    plain = trained(method(), data=data)
    alone = trained(private(method(), clip=1e9, noise=0.0, chunk=chunk), data=data)
    assert distance(plain, alone) < 1e-9


def test_every_example_has_its_own_perturbation():
    data = clients(sizes=EQUAL)
    plain = trained(fedsam(rho=0.5), data=data)
    alone = trained(private(fedsam(rho=0.5), clip=1e9, noise=0.0), data=data)
    assert distance(plain, alone) > 1e-4  # as it must be: the perturbation would otherwise use the data once more
    single = replace(LOCAL, batch=1)
    plain = trained(fedsam(rho=0.5), local=single, data=data)
    alone = trained(private(fedsam(rho=0.5), clip=1e9, noise=0.0, batch=1), local=single, data=data)
    assert distance(plain, alone) < 1e-9


def gradient_of(algorithm, rows, examples):
    """The step's gradient on some examples, with the divisor of all of them."""
    work = job(algorithm, data=clients(sizes=(examples,)))
    own = work.clients[0]
    kept = replace(own, inputs=own.inputs[rows], targets=own.targets[rows])
    from fedra.core.batches import LocalData
    from fedra.core.round import begin
    from fedra.core.teachers import teacher_outputs, teacher_weights

    local = LocalTraining(batch=None)
    data = LocalData(kept, work.model, local, CLASSES, 0, 0, 0)
    program = work.program(0, work.initial(), {})
    client, state = begin(program, {}, data)
    batch = next(iter(data))
    outputs = teacher_outputs(work.model, teacher_weights(work.algorithm, client), {}, batch)
    client = replace(client, examples=examples)
    return program.step(client, state, batch, outputs)["gradient"]


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize(
    "method",
    [fedavg, fedsol, lambda: fedsam(rho=0.2), fedarc, moon],
    ids=["fedavg", "fedsol", "fedsam", "fedarc", "moon"],
)
def test_one_example_moves_the_sum_by_at_most_the_clip_norm(method, chunk):
    clip, count = 0.05, 9
    algorithm = private(method(), clip=clip, noise=0.0, batch=count, chunk=chunk)
    whole = gradient_of(algorithm, list(range(count)), count)
    for left_out in range(count):
        rest = [row for row in range(count) if row != left_out]
        without = gradient_of(algorithm, rest, count)
        moved = math.sqrt(sum((whole[n] - without[n]).square().sum().item() for n in whole)) * count
        assert moved <= clip * (1 + 1e-9)
        assert moved > 0


def test_terms_that_read_no_data_are_not_clipped():
    loose, tight = (
        gradient_of(private(fedprox(mu=1.0), clip=clip, noise=0.0, batch=4), [0, 1, 2, 3], 4) for clip in (1e-9, 1e-12)
    )
    assert distance(loose, tight) < 1e-8  # at the received weights the proximal term is zero
    work = job(private(scaffold(), clip=1e-12, noise=0.0))
    history, made = start(work), RUNNERS["sequential"](work)
    history.server = history.server.with_memory(
        "control-variates", {"mean": {n: torch.ones_like(v) for n, v in history.params.items()}}
    )
    before = {name: value.clone() for name, value in history.params.items()}
    history.round(Keyed(made, work.algorithm), work, 0, [0])
    assert distance(before, history.params) > 0.1


def test_a_gradient_that_is_not_finite_counts_as_zero():
    data = clients(sizes=(8,))
    spoiled = replace(data.examples[0], inputs=data.examples[0].inputs.clone())
    spoiled.inputs[3] = torch.nan
    for chunk in (1, 4):
        algorithm = private(fedavg(), clip=1.0, noise=0.0, batch=8, chunk=chunk)
        work = job(algorithm, data=replace(data, examples=[spoiled]), local=replace(LOCAL, batch=8))
        history, made = start(work), RUNNERS["sequential"](work)
        history.round(Keyed(made, algorithm), work, 0, [0])
        assert all(value.isfinite().all() for value in history.params.values())
        assert math.isfinite(history.uploads[0].metrics["train_loss"])


@pytest.mark.parametrize("sampling", ["shuffle", "poisson"])
@pytest.mark.parametrize("method", [fedavg, fedsol, scaffold, moon, fedrep], ids=lambda method: method.__name__)
def test_all_runners_draw_the_same_batches_and_noise(method, sampling):
    local = replace(LOCAL, sampling=sampling)
    algorithm = private(method(), clip=0.3, noise=1.0, chunk=1)
    alone = trained(algorithm, "sequential", local)
    assert distance(alone, trained(algorithm, "processes", local)) == 0
    assert distance(alone, trained(algorithm, "stacked", local)) < 1e-9
    assert distance(alone, trained(private(method(), clip=0.3, noise=1.0, chunk=3), "sequential", local)) < 1e-9


def test_held_parameters_stay_whatever_the_noise():
    work = job(private(fedrep(), noise=5.0), local=replace(LOCAL, epochs=2, batch=4))
    frozen = replace(work.local, epochs=2)
    assert frozen.epochs == 2
    body = trained(private(fedbabu(), noise=5.0))
    start_head = start(job(private(fedbabu(), noise=5.0))).params["head.weight"]
    assert torch.equal(body["head.weight"], start_head)


def group_net():
    with scoped_seed(3):
        body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten())
        return Net(body, nn.Linear(16, CLASSES)).double()


def test_clipped_gradients_equal_those_of_opacus():
    opacus = pytest.importorskip("opacus")
    for module, shape in ((mlp(), (5,)), (group_net(), (1, 4, 4))):
        work = job(private(fedavg(), clip=0.2, noise=0.0, batch=6), module, clients(shape, sizes=(6,)))
        history, made = start(work), RUNNERS["sequential"](work)
        local = LocalTraining(batch=6, lr=1.0)
        work = replace(work, local=local)
        made = RUNNERS["sequential"](work)
        before = {name: value.clone() for name, value in history.params.items()}
        history.round(Keyed(made, work.algorithm), work, 0, [0])
        sampled = opacus.GradSampleModule(nn.Sequential(module.body, module.head), loss_reduction="mean")
        own = work.clients[0]
        inputs = own.inputs.clone().requires_grad_()  # otherwise its hooks warn
        nn.functional.cross_entropy(sampled(inputs), own.targets).backward()
        each = [parameter.grad_sample for parameter in sampled.parameters()]
        norms = torch.stack([value.flatten(1).square().sum(1) for value in each]).sum(0).sqrt()
        factors = (0.2 / norms).clamp(max=1.0)
        for value, (name, was) in zip(each, before.items(), strict=True):
            expected = torch.tensordot(factors, value, dims=1) / 6
            assert torch.allclose(was - history.params[name], expected, atol=1e-9), name


def test_poisson_batches_have_the_promised_frequencies():
    local = LocalTraining(epochs=50, batch=5, sampling="poisson")
    batches = PoissonBatches(local, 40, (0, 0, 0), SECRET)
    rows = [batches.rows(step) for step in range(batches.steps)]
    assert batches.steps == 400
    sizes = np.array([len(own) for own in rows])
    assert abs(sizes.mean() - 5) < 0.4
    assert abs(sizes.var() - 40 * 0.125 * 0.875) < 1.2
    counts = np.bincount(np.concatenate(rows), minlength=40)
    assert counts.min() > 20
    assert counts.max() < 85
    again = PoissonBatches(local, 40, (1, 2, 3), SECRET)
    assert np.array_equal(again.rows(7), rows[7])  # from the secret alone
    other = PoissonBatches(local, 40, (0, 0, 0), Secret(bytes(32)))
    assert any(not np.array_equal(other.rows(step), rows[step]) for step in range(5))


def test_empty_batches_are_steps_like_any_other():
    local = LocalTraining(epochs=6, batch=1, sampling="poisson", lr=0.1)
    sizes = [len(PoissonBatches(local, 6, (7, 0, 1), SECRET.derive("client", 0, 1)).rows(step)) for step in range(36)]
    assert 0 in sizes
    for runner in ("sequential", "stacked"):
        params = trained(private(fedavg(), batch=1, noise=1.0), runner, local)
        assert all(value.isfinite().all() for value in params.values())
    plain = trained(fedavg(), "sequential", local)
    assert distance(plain, trained(fedavg(), "stacked", local)) < 1e-9


def test_a_key_is_needed_and_not_kept():
    work = job(private(fedavg()))
    history, made = start(work), RUNNERS["sequential"](work)
    with pytest.raises(ConfigError, match=r"\[privacy\] level = 'example'"):
        history.round(made, work, 0, [0])
    history.round(Keyed(made, work.algorithm), work, 0, [0, 1])
    assert not any(history.memory.values())
    assert client_secret(fedavg(), {}) is None


ORDER = {
    "outside": (lambda: replace(fedavg(), gradient=(Clip(), PrivateGradient())), "list it before 'clip'"),
    "appended": (lambda: fedsam().plus(PrivateGradient()), "list it before 'perturb'"),
}


@pytest.mark.parametrize(("build", "sentence"), ORDER.values(), ids=ORDER)
def test_the_rule_must_be_the_outermost(build, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build()


def test_the_first_batch_finds_terms_that_look_at_it_as_a_whole():
    vet_examples(job(fedavg()))
    vet_examples(job(fedsol()))
    vet_examples(job(fedarc()))
    with pytest.raises(ConfigError, match=r"\(decorrelation\) looks at several examples"):
        vet_examples(job(feddecorr(beta=1.0)))
    with pytest.raises(ConfigError, match="looks at several examples"):
        vet_examples(job(fedavg(), conv(track=False)))


def test_exposures_follow_sampling_and_amplification():
    local = LocalTraining(epochs=2, batch=50, sampling="poisson")
    assert exposure_of(local, 600, 600, amplified=True) == Exposure(1 / 12, 24)
    assert exposure_of(local, 600, 600, amplified=False) == Exposure(1.0, 24)
    assert exposure_of(local, 20, 20, amplified=True) == Exposure(1.0, 2)
    assert exposure_of(replace(local, sampling="shuffle"), 600, 600, amplified=True) == Exposure(1.0, 2)


def test_a_run_spends_what_its_worst_client_spends():
    each = (Exposure(1.0, 2), Exposure(1.0, 3), Exposure(1.0, 1), Exposure(1.0, 1))
    account = ExampleAccount(4.0, 1e-4, each)
    rounds = [5, 5, 5, 9]
    exact = [Mechanism(4.0).epsilon(one.releases * count, 1e-4) for one, count in zip(each, rounds, strict=True)]
    assert account.largest(rounds) == max(exact)
    assert account.median(rounds) >= sorted(exact)[1]
    assert account.largest([0] * 4) == 0
    limits = account.limits(max(exact), 50)
    assert account.largest(limits) <= max(exact)
    assert limits[exact.index(max(exact))] == rounds[exact.index(max(exact))]


def test_many_kinds_of_clients_are_bounded_with_few_evaluations(monkeypatch):
    each = tuple(Exposure(10 / size, math.ceil(size / 10)) for size in range(60, 160))
    called = []
    before = Mechanism.epsilon

    def cheap(self, releases, delta):
        called.append(1)
        return self.rate * math.sqrt(releases)  # grows with both, as epsilon does

    monkeypatch.setattr(Mechanism, "epsilon", cheap)
    found = ExampleAccount(1.0, 1e-4, each).largest([3] * len(each))
    exact = max(one.rate * math.sqrt(3 * one.releases) for one in each)
    assert exact <= found <= 1.15 * exact
    assert len(called) <= 10
    monkeypatch.setattr(Mechanism, "epsilon", before)


def test_noise_for_a_budget_holds_for_every_client():
    each = (Exposure(1.0, 2), Exposure(1.0, 3))
    noise = noise_for_examples(3.0, 1e-5, each, rounds=4)
    assert 2.99 < ExampleAccount(noise, 1e-5, each).largest([4, 4]) <= 3.0


CONFIG = {
    "rounds": 2,
    "data": {"name": "digits", "fraction": 0.15},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [16]},
    "runner": {"name": "sequential"},
    "local": {"lr": 0.1, "batch": 20, "sampling": "poisson"},
    "evaluation": {"every": 2},
}
PRIVATE = {"level": "example", "delta": 1e-3, "noise": 1.5, "clip": 0.5}


def config(*, algorithm="fedavg", privacy=None, **changes):
    return {**CONFIG, "algorithm": algorithm, "privacy": {**PRIVATE, **(privacy or {})}, **changes}


def test_a_run_states_its_guarantee_and_keeps_its_secret(tmp_path, monkeypatch):
    monkeypatch.setattr(private_run.Secret, "create", classmethod(lambda cls: SECRET))
    result = fedra.run(config(algorithm="fedsol"), out=tmp_path / "run")
    stated = result.summary["privacy"]
    assert stated["unit"] == "one example"
    assert stated["trust"] == "the client's own device alone"
    assert "a person with several examples" in stated["not_covered"]
    assert stated["epsilon_largest_client"] <= stated["epsilon"]
    assert result.metrics[-1]["epsilon"] == stated["epsilon"]
    assert result.metrics[0]["epsilon"] is None
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert "train_loss" not in line
    assert not (tmp_path / "run" / "clients.jsonl").exists()
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    keys = [SECRET, *(SECRET.derive("client", round, client) for round in range(2) for client in range(4))]
    for key in keys:
        for form in (key.data, key.data.hex().encode(), base64.b64encode(key.data)):
            assert form not in written
    assert not (tmp_path / "run" / "checkpoint" / "secret").exists()


def test_a_run_that_is_resumed_has_the_same_bits_and_counts_each_round_once(tmp_path, monkeypatch):
    monkeypatch.setattr(private_run.Secret, "create", classmethod(lambda cls: SECRET))
    table = config(rounds=3, algorithm="moon", checkpoint={"seconds": 0})
    whole = fedra.run(table, out=tmp_path / "whole")

    class Stop(fedra.callbacks.Callback):
        def on_round_end(self, run, report):
            if report.metrics["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(fedra.FedraError):
        fedra.run(table, out=tmp_path / "broken", callbacks=[Stop()])
    resumed = fedra.resume(tmp_path / "broken")
    assert resumed.summary["privacy"]["epsilon"] == whole.summary["privacy"]["epsilon"]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value)


def test_two_runs_differ_unless_they_say_that_noise_can_be_recomputed():
    first, second = (fedra.run(config(rounds=1)) for _ in range(2))
    assert any(not torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    shown = [fedra.run(config(rounds=1, privacy={"seed": "run"})) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(shown[0].model.parameters(), shown[1].model.parameters(), strict=True))
    assert "epsilon" not in shown[0].summary["privacy"]


def test_a_client_that_has_spent_its_budget_is_not_asked_any_more(tmp_path):
    budget = Mechanism(1.5, 20 / 68).epsilon(4 * 2, 1e-3) + 1e-6
    result = fedra.run(config(rounds=9, privacy={"epsilon": budget, "figures": "all"}), out=tmp_path / "run")
    assert result.summary["rounds"] < 9
    assert result.summary["stopped"] == "budget"
    assert result.summary["privacy"]["epsilon"] <= budget
    lines = [json.loads(line) for line in (tmp_path / "run" / "clients.jsonl").read_text().splitlines()]
    assert max(line["round"] for line in lines) == result.summary["rounds"]


def test_noise_is_computed_from_a_budget():
    result = fedra.run(config(rounds=2, local={"batch": "all"}, privacy={"epsilon": 3.0, "noise": "auto"}))
    assert 2.9 < result.summary["privacy"]["epsilon"] <= 3.0


def test_pooled_examples_can_be_protected_too():
    result = fedra.run(config(mode="centralized", rounds=1))
    assert result.summary["privacy"]["epsilon"] > 0


def test_shuffled_batches_are_counted_without_amplification():
    local = {"batch": 20, "epochs": 3}
    result = fedra.run(config(local=local, privacy={"amplification": "none", "noise": 4.0}))
    assert result.summary["privacy"]["epsilon"] == Mechanism(4.0).epsilon(6, 1e-3)


def test_class_vectors_are_told_as_not_covering_people():
    partition = {"name": "one-class", "clients": 0}
    result = fedra.run(config(algorithm="fedpe", partition=partition, rounds=1))
    assert any("class vector" in gap for gap in result.summary["privacy"]["not_covered"])


REFUSED = {
    "delta": ({"privacy": {"delta": 0.5}}, r"privacy\.delta must be below .* examples of its largest client"),
    "no delta": ({"privacy": {"delta": None}}, r"privacy\.delta must be set"),
    "no noise": ({"privacy": {"noise": "auto"}}, "needs noise, or epsilon"),
    "too small a budget": ({"privacy": {"epsilon": 0.01}}, "must allow at least one round"),
    "adaptive": ({"privacy": {"clip": "adaptive"}}, "must be a norm at the level of examples"),
    "shuffled": ({"local": {"batch": 20}}, "shuffled batches have no proven amplification"),
    "incomplete batches": ({"local": {"sampling": "poisson", "drop_last": True}}, "needs shuffled batches"),
    "running": ({"model": {"name": "resnet18", "norm": "running"}}, "must not mix the examples"),
    "batch": ({"model": {"name": "resnet18", "norm": "batch"}}, "must not mix the examples"),
    "decorrelation": ({"algorithm": "feddecorr"}, "'decorrelation' looks at several examples"),
    "meta": ({"algorithm": "per-fedavg", "privacy": {"figures": "all"}}, "'meta-step' looks at several"),
    "chunks": ({"algorithm": {"name": "fedavg", "plus": ["accumulate"]}}, "'accumulate' looks at several"),
    "counts": ({"algorithm": "fedlc"}, "'calibrated-cross-entropy' weights its loss by the client's label counts"),
    "restricted": ({"algorithm": "fedrs"}, "privacy.counts = 'public'"),
    "margin": ({"algorithm": {"name": "fedarc", "margin": {"name": "curricularface"}}}, "without running state"),
    "round zero": ({"algorithm": "fedface", "partition": {"name": "one-class", "clients": 0}}, "mean features"),
    "pairs": ({"algorithm": {"name": "fedarc", "margin": {"name": "triplet"}}}, "several examples"),
    "diagnostics": ({"diagnostics": {"divergence": True}}, "diagnostics look at clients' models"),
    "personal": ({"algorithm": {"name": "fedavg", "plus": ["fine-tune"]}}, "not covered by the guarantee"),
    "twice": (
        {"algorithm": {"name": "fedavg", "plus": ["private-gradient"]}},
        "two different parts 'private-gradient'",
    ),
}


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        fedra.run(config(**changes))


def test_label_counts_may_be_declared_public():
    result = fedra.run(config(algorithm="fedlc", rounds=1, privacy={"counts": "public"}))
    assert any("examples of each class" in gap for gap in result.summary["privacy"]["not_covered"])


def test_accumulating_inside_a_private_rule_is_no_private_rule():
    assert Accumulate().mixes_examples


def test_the_budget_command_shows_what_examples_lose(tmp_path, capsys):
    from fedra.config.reading import read, write
    from tiny import call, mistake

    path = tmp_path / "examples.toml"
    path.write_text(write(read(config(rounds=4, local={"batch": "all"}, privacy={"epsilon": 9.0}))))
    code, output, _ = call(capsys, "budget", path, "--examples", "600")
    assert code == 0
    assert f"{Mechanism(1.5).epsilon(4, 1e-3):.2f}" in output
    assert "unit: one example" in output
    assert "--examples" in mistake(capsys, "budget", path)
