"""The plan: written, read back, public without the coordinator's paths, and one digest for one plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedra.config.reading import read
from fedra.errors import ConfigError
from fedra.federation.federation_plan import FILE, FederationPlan, FederationSection, parse_plan, read_plan
from fedra.federation.local_data.data_schema import DataSchema

SCHEMA = DataSchema(shape=(1, 8, 8), classes=("a", "b"), mean=(0.5,), std=(0.5,))


def plan_of(federation: dict[str, Any] | None = None, **config: Any) -> FederationPlan:
    table = {"model": {"name": "mlp"}, "rounds": 3, "data": {"name": "sites"}, **config}
    rules = {"name": "chest", "address": "127.0.0.1:8443", **(federation or {})}
    return FederationPlan(read(table), SCHEMA, FederationSection.model_validate(rules))


def test_a_written_plan_is_read_back(tmp_path: Path) -> None:
    plan = plan_of({"least": 3}, local={"batch": 0}, device="cpu")
    (tmp_path / FILE).write_text(plan.to_toml())
    assert read_plan(tmp_path) == plan
    assert parse_plan(plan.public, "here").digest == plan.digest


def test_the_public_part_has_nothing_of_the_coordinators_machine() -> None:
    plan = plan_of(model={"name": "mlp", "weights": "/secret/run"}, device="cuda:1", checkpoint={"seconds": 0})
    text = json.dumps(plan.public)
    assert "/secret" not in text
    assert "cuda" not in text
    assert "checkpoint" not in text


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"rounds": 4}, False),
        ({"local": {"lr": 0.02}}, False),
        ({"algorithm": {"name": "fedprox", "mu": 0.1}}, False),
        ({"federation": {"least": 1}}, False),
        ({"federation": {"address": "elsewhere:9"}}, True),
        ({"device": "cuda"}, True),
        ({"checkpoint": {"seconds": 1}}, True),
    ],
)
def test_the_digest_changes_with_what_sites_approve(other: dict[str, Any], same: bool) -> None:
    assert (plan_of().digest == plan_of(**other).digest) is same


@pytest.mark.parametrize("address", ["fed.example.org", "http://a:1", "a:0", "a:70000", "a b:1", ":80"])
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        plan_of().at(address)


def test_an_ordinary_configuration_is_not_a_plan(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("rounds = 3\n")
    with pytest.raises(ConfigError, match="federation"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"classes": ()}, "identities = 'own'"),
        ({"classes": ("a", "a")}, "different names"),
        ({"std": None}, "both mean and std"),
        ({"mean": (0.5, 0.5), "std": (1.0, 1.0)}, "per channel"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(change: dict[str, Any], sentence: str) -> None:
    public = plan_of().public
    public["data"] = {**public["data"], **change}
    with pytest.raises(ConfigError, match="data") as error:
        parse_plan(public, "here")
    assert sentence in str(error.value)
