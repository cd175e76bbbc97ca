"""Simulated attacks: their formulas, who is malicious, and that they run the same on every runner."""

import math

import pytest
import torch

import fedra
from fedra.config.privacy_sections import AttackSection
from fedra.errors import ConfigError
from fedra.experiment.attacks import alie_factor, choose_malicious, forge
from fedra.parts import Median, TrimmedMean

CONFIG = {
    "rounds": 3,
    "data": {"name": "digits", "fraction": 0.3},
    "partition": {"name": "iid", "clients": 8},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1},
    "runner": {"name": "sequential"},
}
HONEST = [{"a": torch.randn(4, 5, generator=torch.Generator().manual_seed(k))} for k in range(6)]
OWN = {"a": torch.ones(4, 5)}


def forged(name, malicious=2, **settings):
    draw = torch.Generator().manual_seed(0)
    section = AttackSection(name=name, **settings)
    return forge(section, OWN, HONEST, malicious, draw)["a"]


def test_updates_of_malicious_clients():
    rows = torch.stack([one["a"] for one in HONEST])
    mean = rows.mean(dim=0)
    assert torch.allclose(forged("sign-flip", scale=3.0), -3 * mean, atol=1e-6)
    assert torch.equal(forged("scaled", scale=3.0), 3 * OWN["a"])
    assert forged("not-finite").isnan().all()
    assert forged("noise", scale=2.0).norm() == pytest.approx(2 * float(mean.norm()), rel=0.6)
    expected = mean - alie_factor(8, 2) * rows.std(dim=0, correction=0)
    assert torch.allclose(forged("alie"), expected, atol=1e-6)
    far = forged("min-max")
    largest = torch.cdist(rows.flatten(1), rows.flatten(1)).max()
    assert (rows - far).flatten(1).norm(dim=1).max() == pytest.approx(float(largest), rel=1e-4)
    along = torch.nn.functional.cosine_similarity((far - mean).flatten(), mean.flatten(), dim=0)
    assert along == pytest.approx(-1, abs=1e-4)


def test_the_factor_of_a_little_is_enough():
    assert alie_factor(50, 24) == pytest.approx(1.4260768722848)  # 24 of 26 honest clients
    assert alie_factor(4, 0) == 0.0


def test_malicious_clients_are_keyed_by_the_seed():
    section = AttackSection(name="noise", share=0.25)
    assert len(choose_malicious(section, 20, 1)) == 5
    assert choose_malicious(section, 20, 1) == choose_malicious(section, 20, 1)
    assert len({choose_malicious(section, 20, seed) for seed in range(5)}) > 1
    assert choose_malicious(AttackSection(), 20, 1) == ()


@pytest.mark.parametrize("name", ["sign-flip", "noise", "min-max", "label-flip"])
def test_an_attacked_run_is_the_same_on_two_runners(name):
    table = {**CONFIG, "attack": {"name": name, "share": 0.25}}
    one = fedra.run(table)
    other = fedra.run({**table, "runner": {"name": "stacked"}})
    plain = fedra.run(CONFIG)
    changed = False
    for key, value in one.model.state_dict().items():
        assert torch.allclose(other.model.state_dict()[key], value, atol=1e-4), key
        changed |= not torch.allclose(plain.model.state_dict()[key], value, atol=1e-4)
    assert changed
    assert one.summary["attack"]["clients"] == list(choose_malicious(AttackSection(name=name, share=0.25), 8, 0))
    assert [line["malicious"] for line in one.metrics] == [2, 2, 2]


def test_uploads_that_are_not_finite_are_rejected():
    result = fedra.run({**CONFIG, "attack": {"name": "not-finite", "share": 0.25}})
    assert [line["dropped"] for line in result.metrics] == [2, 2, 2]
    assert math.isfinite(result.metrics[-1]["train_loss"])


def test_a_robust_rule_withstands_what_the_mean_does_not():
    table = {**CONFIG, "rounds": 6, "attack": {"name": "sign-flip", "share": 0.25, "scale": 10.0}}
    mean = fedra.run(table).summary["final_accuracy"]
    robust = fedra.run({**table, "algorithm": {"name": "fedavg", "plus": ["median"]}}).summary["final_accuracy"]
    assert robust > mean + 0.1


def test_two_combine_rules_are_refused():
    two = {**CONFIG, "algorithm": {"name": "fedavg", "plus": ["median", "trimmed-mean"]}}
    with pytest.raises(ConfigError, match="at most one combine rule, got 'median' and 'trimmed-mean'"):
        fedra.run(two)
    with pytest.raises(ConfigError, match="keep one of them"):
        fedra.algorithms.fedavg().plus(Median(), TrimmedMean())
    fedra.algorithms.fedavg().plus(Median(), Median())


def test_attacks_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="needs clients, got mode = 'centralized'"):
        fedra.run({**CONFIG, "mode": "centralized", "attack": {"name": "noise"}})
