"""Client-level privacy: the mechanism by itself, and whole runs."""

import base64
import json
import math
import stat
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedra
from fedra.core.released_fold import Layout
from fedra.errors import ConfigError, RunError
from fedra.experiment import private_run
from fedra.parts import PlainMean
from fedra.parts.private import PrivateMean
from fedra.privacy.client_level import ClipAndNoise, PrivateSum
from fedra.privacy.secret import Secret

SECRET = Secret(bytes(range(32)))


def numbers(**changes):
    return replace(ClipAndNoise(clip=1.0, noise=0.0, divisor=10.0, expected=10.0), **changes)


def released(vectors, mechanism, secret=SECRET, where=(0, 0)):
    release = PrivateSum(mechanism, vectors.shape[1], secret, *where)
    if len(vectors):
        release.add(vectors, [1.0] * len(vectors))
    return release


values = st.sampled_from([0.0, 1e-20, 0.3, -1.0, 5.0, 1e6, -1e30, float("nan"), float("inf")])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(values, min_size=3, max_size=3), min_size=1, max_size=5))
def test_one_client_moves_the_sum_by_at_most_the_clip_norm(rows):
    vectors = torch.tensor(rows)
    whole = released(vectors, numbers(clip=0.7)).finish().total
    for client in range(len(rows)):
        others = torch.cat([vectors[:client], vectors[client + 1 :]])
        without = released(others, numbers(clip=0.7)).finish().total
        assert (whole - without).norm() <= 0.7 * (1 + 1e-5)


def test_the_divisor_is_public_whoever_came():
    for count in (0, 1, 25):
        assert released(torch.ones(count, 3), numbers(divisor=12.5)).finish().weight == 12.5


def test_noise_has_the_promised_deviation_and_differs_between_rounds_and_attempts():
    mechanism = numbers(clip=0.5, noise=2.0)
    drawn = [released(torch.zeros(0, 4000), mechanism, where=(round, 0)).finish().total for round in range(20)]
    stacked = torch.stack(drawn)
    assert stacked.std().item() == pytest.approx(1.0, rel=0.01)
    assert torch.corrcoef(stacked).fill_diagonal_(0).abs().max() < 0.08
    again = released(torch.zeros(0, 4000), mechanism, where=(0, 0)).finish().total
    other = released(torch.zeros(0, 4000), mechanism, where=(0, 1)).finish().total
    assert torch.equal(again, drawn[0])
    assert not torch.equal(other, drawn[0])


def test_an_adaptive_clip_finds_the_median_of_the_norms():
    clip = 0.1
    for round in range(30):
        release = released(torch.eye(10), numbers(clip=clip, count_noise=0.0, quantile=0.5), where=(round, 0))
        clip = release.next_clip()
    assert clip == pytest.approx(1.1023, abs=1e-4)  # by hand: up by e^0.1 until it passes 1, then down
    norms = torch.linspace(0.2, 1.8, 41).unsqueeze(1)
    for first in (0.01, 30.0):
        clip = first
        for round in range(200):
            release = released(
                norms, numbers(clip=clip, count_noise=2.0, quantile=0.5, expected=41.0), where=(round, 0)
            )
            clip = release.next_clip()
        assert 0.8 < clip < 1.25


def test_sum_and_count_together_have_the_noise_that_is_accounted():
    part = PrivateMean(noise=1.0, clip=0.1, quantile=0.5, expected=100.0)
    assert part.sum_noise == pytest.approx(1.00503782, abs=1e-8)
    assert part.sum_noise**-2 + (2 * part.count_noise) ** -2 == pytest.approx(part.noise**-2)
    with pytest.raises(ConfigError, match="twice the noise of the clipping count"):
        PrivateMean(noise=1.0, clip=0.1, quantile=0.5, expected=5.0)


def test_a_layout_puts_every_number_in_its_place():
    blocks = {"update|a": torch.arange(12.0).view(2, 2, 3), "part|b": torch.tensor([[7.0], [8.0]])}
    layout = Layout.of(blocks)
    flat = layout.flatten(blocks)
    assert flat.shape == (2, 7)
    assert torch.equal(layout.split_up(flat[1])["update|a"], blocks["update|a"][1])
    assert torch.equal(layout.split_up(flat[1])["part|b"], blocks["part|b"][1])
    assert layout.digest != Layout.of({"update|a": torch.zeros(1, 3, 2)}).digest


CONFIG = {
    "rounds": 3,
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "iid", "clients": 12},
    "model": {"name": "mlp"},
    "runner": {"name": "sequential"},
    "cohort": {"fraction": 0.5, "sampling": "poisson"},
    "local": {"lr": 0.1, "batch": 10},
}
PRIVATE = {"level": "client", "delta": 1e-3, "noise": 1.0, "clip": 0.5}


def config(*, algorithm="fedavg", privacy=None, **changes):
    return {**CONFIG, "algorithm": algorithm, "privacy": {**PRIVATE, **(privacy or {})}, **changes}


METHODS = [
    "fedavg",
    {"name": "fedprox", "mu": 0.1},
    "scaffold",
    "feddyn",
    "fednova",
    {"name": "fedsol"},
    "moon",
    "fedadam",
    "fedarc",
    "fedper",
    "ditto",
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_an_endless_clip_without_noise_is_the_plain_mean(method):
    clients = {"name": "iid", "clients": 10}
    table = {"rounds": 3, "partition": clients, "cohort": {"fraction": 1.0}}
    endless = {"clip": 1e9, "noise": 0.0, "figures": "all"}
    private = fedra.run(config(algorithm=method, privacy=endless, **table))
    named = {"name": method} if isinstance(method, str) else method
    named = {"name": "fedavg"} if method == "fednova" else named  # what FedNova is if all clients take as many steps
    plain = fedra.run({**CONFIG, "algorithm": {**named, "plus": [PlainMean.name]}, **table})
    for name, value in plain.model.state_dict().items():
        assert torch.allclose(private.model.state_dict()[name], value, atol=2e-5), name


def test_a_run_that_is_resumed_has_the_same_bits_and_counts_each_round_once(tmp_path, monkeypatch):
    monkeypatch.setattr(private_run.Secret, "create", classmethod(lambda cls: SECRET))
    whole = fedra.run(config(), out=tmp_path / "whole")

    class Stop(fedra.callbacks.Callback):
        def on_round_end(self, run, report):
            if report.metrics["round"] == 2:
                raise KeyboardInterrupt

    broken = config()
    with pytest.raises(fedra.FedraError):
        fedra.run(broken, out=tmp_path / "broken", callbacks=[Stop()])
    resumed = fedra.resume(tmp_path / "broken")
    assert resumed.summary["privacy"]["releases"] == 3
    assert resumed.metrics[-1]["epsilon"] == whole.metrics[-1]["epsilon"]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value)


def test_two_runs_of_one_configuration_have_different_noise_unless_they_say_so():
    first, second = (fedra.run(config(rounds=1)) for _ in range(2))
    assert any(not torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    shown = [fedra.run(config(rounds=1, privacy={"seed": "run"})) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(shown[0].model.parameters(), shown[1].model.parameters(), strict=True))
    assert "epsilon" not in shown[0].summary["privacy"]
    assert shown[0].summary["privacy"]["epsilon_if_secret"] == first.summary["privacy"]["epsilon"]


def test_the_secret_is_private_and_gone_after_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(private_run.Secret, "create", classmethod(lambda cls: SECRET))
    modes = []

    class Look(fedra.callbacks.Callback):
        def on_round_end(self, run, report):
            modes.append(stat.S_IMODE((run.folder / "checkpoint/secret").stat().st_mode))

    fedra.run(config(), out=tmp_path / "run", callbacks=[Look()])
    assert modes == [0o600] * 3
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    for form in (SECRET.data, SECRET.data.hex().encode(), base64.b64encode(SECRET.data)):
        assert form not in written
    assert not (tmp_path / "run" / "checkpoint" / "secret").exists()


def test_a_run_without_its_secret_is_refused(tmp_path):
    class Stop(fedra.callbacks.Callback):
        def on_round_end(self, run, report):
            raise KeyboardInterrupt

    with pytest.raises(fedra.FedraError):
        fedra.run(config(), out=tmp_path / "run", callbacks=[Stop()])
    (tmp_path / "run" / "checkpoint" / "secret").unlink()
    with pytest.raises(RunError, match="start another run"):
        fedra.resume(tmp_path / "run")


def test_only_what_the_guarantee_covers_is_recorded(tmp_path):
    fedra.run(config(), out=tmp_path / "run")
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"epsilon", "clip", "noise_share", "accuracy"} <= line.keys()
    assert not {"train_loss", "clients", "dropped", "bytes_up"} & line.keys()
    assert not (tmp_path / "run" / "clients.jsonl").exists()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {"epsilon", "delta", "unit", "trust", "not_covered", "accountant"} <= summary["privacy"].keys()


def test_a_budget_ends_the_run_before_it_is_exceeded():
    result = fedra.run(config(rounds=50, privacy={"epsilon": 6.0}))
    assert 1 <= result.summary["rounds"] < 50
    assert result.summary["stopped"] == "budget"
    assert result.summary["privacy"]["epsilon"] <= 6.0


def test_noise_is_computed_from_a_budget():
    result = fedra.run(config(rounds=2, cohort={"fraction": 1.0}, privacy={"epsilon": 3.0, "noise": "auto"}))
    assert 2.99 < result.summary["privacy"]["epsilon"] <= 3.0
    assert "stopped" not in result.summary


def test_an_empty_cohort_is_a_round_like_any_other():
    result = fedra.run(config(cohort={"fraction": 0.001, "sampling": "poisson"}))
    assert result.summary["rounds"] == 3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"privacy": {"seed": "run", "clip": "adaptive", "noise": 0.5}},
        {"privacy": {"seed": "run", "where": "clients"}, "secure": {"aggregation": "masks", "threshold": 0.51}},
    ],
    ids=["server", "adaptive clip", "clients"],
)
def test_an_upload_that_is_not_finite_counts_as_zeros_and_as_an_answer(changes, monkeypatch):
    table = config(**{"cohort": {"fraction": 1.0}, "rounds": 2, "privacy": {"seed": "run"}, **changes})
    found = fedra.run({**table, "attack": {"name": "not-finite", "share": 0.75}})  # below the quorum if it were dropped
    bad = set(found.summary["attack"]["clients"])
    assert len(bad) == 9

    def accept(uploads, *rest):
        return [None] * len(uploads)

    monkeypatch.setattr("fedra.experiment.rounds.rejection_reasons", accept)  # NaN reaches the mechanism itself
    reference = fedra.run({**table, "attack": {"name": "not-finite", "share": 0.75}})
    for name, value in reference.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value)
    assert found.metrics[-1]["clip"] == reference.metrics[-1]["clip"]


def test_a_round_that_fails_names_no_client(tmp_path):
    lost = {"faults": {"dropout": 0.99, "quorum": 0.9}, "attack": {"name": "not-finite"}, "cohort": {"fraction": 1.0}}
    with pytest.raises(RunError, match="did not reach its quorum of 90% in 4 attempts; raise") as found:
        fedra.run(config(**lost), out=tmp_path / "run")
    assert "client " not in str(found.value)
    assert "client " not in json.loads((tmp_path / "run" / "summary.json").read_text())["failure"]


REFUSED = {
    "delta": ({"privacy": {"delta": 0.5}}, r"privacy\.delta must be below 0\.083"),
    "no delta": ({"privacy": {"delta": None}}, r"privacy\.delta must be set"),
    "no noise": ({"privacy": {"noise": "auto"}}, "needs noise, or epsilon"),
    "rows": ({"algorithm": "fedgc"}, "class vector of every person"),
    "round zero": ({"algorithm": "fedface"}, "class vector of every person|mean features"),
    "margin state": (
        {"algorithm": {"name": "fedarc", "margin": {"name": "curricularface"}}},
        "margin loss without running state",
    ),
    "median": ({"algorithm": {"name": "fedavg", "plus": ["median"]}}, "needs single uploads"),
    "statistics": ({"model": {"name": "resnet18", "norm": "running"}}, "running statistics"),
    "fixed cohorts": ({"cohort": {"fraction": 0.5}}, "no proven amplification"),
    "diagnostics": ({"diagnostics": {"divergence": True}}, "diagnostics look at clients' models"),
    "personal models": ({"algorithm": {"name": "fedavg", "plus": ["fine-tune"]}}, "not covered by the guarantee"),
    "centralized": ({"mode": "centralized", "cohort": {"fraction": 1.0}}, "needs clients"),
}


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        fedra.run(config(**changes))


def test_fixed_cohorts_are_counted_without_amplification():
    result = fedra.run(config(cohort={"fraction": 0.5}, privacy={"amplification": "none"}))
    assert result.summary["privacy"]["rate"] == 1.0


SECURE = {"cohort": {"fraction": 0.5}, "secure": {"aggregation": "masks", "bound": 2.0}}


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn"])
def test_a_secure_sum_gives_the_weighted_mean_to_rounding(method):
    partition = {"name": "dirichlet", "clients": 8, "alpha": 1.0}
    plain = fedra.run({**CONFIG, "algorithm": method, "partition": partition, "cohort": SECURE["cohort"]})
    secure = fedra.run({**CONFIG, "algorithm": method, "partition": partition, **SECURE})
    if method == "fedavg":
        for name, value in plain.model.state_dict().items():
            assert torch.allclose(secure.model.state_dict()[name], value, atol=1e-5), name
    assert secure.summary["rounds"] == 3


def test_a_secure_round_needs_three_clients():
    with pytest.raises(ConfigError, match="at least 3 clients in a round, got 2"):
        fedra.run({**CONFIG, **SECURE, "cohort": {"fraction": 0.17}})


def test_the_reported_share_of_noise_is_a_function_of_the_released_sum() -> None:
    vectors = torch.randn(5, 400, generator=torch.Generator().manual_seed(0))
    numbers = ClipAndNoise(clip=1.0, noise=2.0, divisor=5, expected=5)
    release = PrivateSum(numbers, 400, Secret(b"s" * 32), 1, 0)
    release.add(vectors, [1.0] * 5)
    released = release.finish().total
    assert release.noise_share == pytest.approx(2.0 * math.sqrt(400) / float(released.norm()))


def test_private_runs_can_be_compared(tmp_path):
    from fedra.reports.comparison import compare

    fedra.run(config(rounds=1), out=tmp_path / "private")
    fedra.run({**CONFIG, "rounds": 1}, out=tmp_path / "plain")
    found = compare([str(tmp_path / "private"), str(tmp_path / "plain")], out=tmp_path / "curves.svg")
    assert found.rows[0]["epsilon"] > 0
    assert "epsilon" not in found.rows[1]
