"""Simulated attacks: their formulas, who is malicious, and that they run the same on every runner."""

import math

import pytest
import torch

import fedra
from fedra.config.privacy_sections import AttackSection
from fedra.core.batches import Examples
from fedra.errors import ConfigError
from fedra.experiment.attacks import alie_factor, choose_malicious, forge
from fedra.experiment.backdoor import Backdoor, Trigger
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


@pytest.mark.parametrize("name", ["sign-flip", "noise", "min-max", "label-flip", "backdoor"])
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


BACKDOOR = {
    **CONFIG,
    "rounds": 10,
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"lr": 0.3},
    "evaluation": {"every": 10},
    "attack": {"name": "backdoor", "share": 0.25, "scale": 4.0},
}


def test_a_backdoor_opens_only_with_its_trigger_and_only_if_somebody_attacks():
    attacked = fedra.run(BACKDOOR)
    found = attacked.summary["attack"]
    assert found["trigger_rate"] > 0.8
    assert found["control_rate"] < 0.1
    assert attacked.summary["final_accuracy"] > 0.8
    assert attacked.metrics[-1]["trigger_rate"] == found["trigger_rate"]
    control = fedra.run({**BACKDOOR, "attack": {**BACKDOOR["attack"], "share": 0.0}})
    assert control.summary["attack"]["clients"] == []
    assert control.summary["attack"]["trigger_rate"] < 0.2
    plain = fedra.run({**BACKDOOR, "attack": {"name": "none"}})
    assert all(torch.equal(plain.model.state_dict()[k], v) for k, v in control.model.state_dict().items())
    assert "attack" not in plain.summary


def test_a_backdoor_poisons_a_share_of_the_malicious_clients_images():
    images = torch.zeros(10, 1, 6, 6, dtype=torch.uint8)
    own = Examples(images, torch.arange(10))
    poisoned = Backdoor(Trigger(target=7, patch=2, value=255), share=0.4, seed=3)(own, 5)
    marked = poisoned.inputs.flatten(1).sum(dim=1)
    assert sorted(set(marked.tolist())) == [0, 4 * 255]
    assert (poisoned.inputs[marked > 0, :, 4:, 4:] == 255).all()
    assert (poisoned.targets[marked > 0] == 7).all()
    assert torch.equal(poisoned.targets[marked == 0], own.targets[marked == 0])
    assert int((marked > 0).sum()) == 4
    assert images.sum() == 0


def test_the_choice_of_a_robust_rule_is_recorded():
    rule = {"name": "fedavg", "plus": [{"name": "multi-krum", "malicious": 0.25}]}
    krum = fedra.run({**CONFIG, "algorithm": rule, "attack": {"name": "scaled", "share": 0.25, "scale": 50.0}})
    assert [line["malicious_left_out"] for line in krum.metrics] == [2, 2, 2]
    assert [line["malicious_weight"] for line in krum.metrics] == [0.0, 0.0, 0.0]
    bound = {"name": "fedavg", "plus": [{"name": "norm-bound", "bound": 1e-3}]}
    bounded = fedra.run({**CONFIG, "algorithm": bound, "attack": {"name": "scaled", "share": 0.25, "scale": 50.0}})
    assert all(0 < line["malicious_weight"] < 0.1 for line in bounded.metrics)
    assert "malicious_weight" not in fedra.run({**CONFIG, "attack": {"name": "noise"}}).metrics[0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attack": {"name": "backdoor", "patch": 8}}, "needs images larger than its trigger"),
        ({"attack": {"name": "backdoor", "target": 10}}, "must be a class, 0 to 9, got 10"),
        ({"data": {"name": "synthetic", "examples": 60, "shape": [6]}, "attack": {"name": "backdoor"}}, "needs images"),
    ],
)
def test_backdoors_that_do_not_fit_are_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        fedra.run({**CONFIG, **changes})
