"""Privacy in a federation: the simulator's bits, what a policy demands, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rehearsing import Rehearsed
from test_federation_plan import plan_of

import fedra
from fedra.errors import ConfigError
from fedra.federation.declared_uploads import demands_of
from fedra.federation.policy import Policy, refuse
from fedra.federation.server_build import check_plan
from fedra.federation.site_privacy import BudgetSpent, SitePrivacy

PRIVATE: dict[str, Any] = {"level": "client", "delta": 1e-3, "noise": 2.0, "clip": 1.0}
TABLE: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "mlp"},
    "algorithm": "scaffold",
    "local": {"lr": 0.1},
    "runner": {"name": "sequential"},
    "privacy": {**PRIVATE, "seed": "run"},
}


def test_a_private_federation_has_the_simulators_bits(tmp_path: Path) -> None:
    found = Rehearsed(tmp_path, TABLE, rules={"evaluation": "none"}).run()
    reference = fedra.run(TABLE)
    for name, value in reference.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value)
    assert found.summary["privacy"] == reference.summary["privacy"] | {"secret": found.summary["privacy"]["secret"]}


@pytest.mark.parametrize(
    ("demanded", "privacy", "reason"),
    [
        (1.0, {}, "the plan has no differential privacy"),
        (1.0, {**PRIVATE, "seed": "run"}, "the plan has no differential privacy"),
        (1.0, {**PRIVATE, "epsilon": 4.0}, "the plan has 4"),
        (8.0, {**PRIVATE, "epsilon": 4.0}, None),
        (8.0, PRIVATE, None),
    ],
)
def test_a_site_demands_privacy(demanded: float, privacy: dict[str, Any], reason: str | None) -> None:
    policy = Policy.model_validate({"privacy": {"epsilon": demanded}})
    asked = demands_of(plan_of(privacy=privacy))
    found = [sentence for sentence in refuse(asked, policy) if "epsilon" in sentence]
    assert (reason is None and not found) or (reason is not None and reason in found[0])


def test_what_a_federation_does_not_protect_is_refused() -> None:
    with pytest.raises(ConfigError, match="set it to 'server' or 'none'"):
        check_plan(plan_of({"evaluation": "sites"}, privacy=PRIVATE))
    check_plan(plan_of({"evaluation": "server"}, privacy=PRIVATE))
    turns: dict[str, Any] = {"cohort": {"fraction": 0.25, "sampling": "rotation"}}
    with pytest.raises(ConfigError, match="sites may join a federation later"):
        check_plan(plan_of({"evaluation": "server"}, privacy={**PRIVATE, "band": 2}, **turns))


EXAMPLES: dict[str, Any] = {"level": "example", "delta": 1e-3, "noise": 1.5, "clip": 0.5, "epsilon": 50.0}
EXAMPLE_TABLE: dict[str, Any] = {
    **TABLE,
    "rounds": 2,
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 20, "sampling": "poisson"},
    "privacy": {**EXAMPLES, "seed": "run"},
}


def test_sites_protect_their_examples_with_the_simulators_bits(tmp_path: Path) -> None:
    found = Rehearsed(tmp_path, EXAMPLE_TABLE, sites=2, rules={"evaluation": "none"}).run()
    reference = fedra.run(EXAMPLE_TABLE)
    for name, value in reference.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value)
    assert found.summary["privacy"]["unit"] == "one example"
    assert found.summary["privacy"]["epsilon_if_secret"] >= reference.summary["privacy"]["epsilon_if_secret"]


def test_a_site_has_its_own_secret_and_keeps_the_budget_itself(tmp_path: Path) -> None:
    table = {**EXAMPLE_TABLE, "privacy": EXAMPLES}
    rehearsed = Rehearsed(tmp_path, table, sites=2, rules={"evaluation": "none"})
    result = rehearsed.run()
    assert result.summary["privacy"]["epsilon"] > 0
    secrets = [(tmp_path / name / "state" / "secret") for name in rehearsed.places]
    assert len({path.read_bytes() for path in secrets}) == 2
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in secrets)
    counts = [json.loads((tmp_path / name / "state" / "privacy.json").read_bytes()) for name in rehearsed.places]
    assert all(len(marks) == 2 for site in counts for marks in site.values())
    assert not any("train_loss" in line and line["train_loss"] for line in result.metrics)


def test_a_site_refuses_a_training_beyond_its_budget(tmp_path: Path) -> None:
    table = {**EXAMPLE_TABLE, "privacy": {**EXAMPLES, "seed": "run"}}
    rehearsed = Rehearsed(tmp_path, table, sites=2, rules={"evaluation": "none"})
    rehearsed.run()
    name, clients = next(iter(rehearsed.places.items()))
    node = rehearsed.nodes[name]
    joined = node._joined
    assert joined is not None
    spent = SitePrivacy(tmp_path / name / "state", joined.plan, joined.job, Policy())
    with pytest.raises(BudgetSpent, match="has spent its privacy budget in 2 rounds"):
        spent._count({clients[0]: "another model"})


@pytest.mark.parametrize(
    ("rules", "privacy", "sentence"),
    [
        ({}, {"epsilon": None}, "needs privacy.epsilon"),
        ({}, {"noise": "auto"}, "privacy.noise as a number"),
        ({"weighting": "equal"}, {}, "federation.weighting = 'equal'"),
    ],
)
def test_plans_whose_sites_could_not_protect_examples(
    rules: dict[str, Any], privacy: dict[str, Any], sentence: str
) -> None:
    local = {"batch": 20, "sampling": "poisson"}
    with pytest.raises(ConfigError, match=sentence):
        check_plan(plan_of({"evaluation": "server", **rules}, privacy={**EXAMPLES, **privacy}, local=local))


def test_a_federation_simulates_no_attack() -> None:
    with pytest.raises(ConfigError, match="which a federation does not do"):
        check_plan(plan_of(attack={"name": "noise"}))


def test_a_coordinator_has_no_clean_examples() -> None:
    with pytest.raises(ConfigError, match="needs clean examples on the server"):
        check_plan(plan_of(algorithm={"name": "fedavg", "plus": ["root-trust"]}))
