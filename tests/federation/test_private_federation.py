"""Client-level privacy in a federation: the simulator's bits, what a policy demands, and what is refused."""

from __future__ import annotations

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
