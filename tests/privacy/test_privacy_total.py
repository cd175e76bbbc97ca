"""What several private runs spend together."""

import json
import math

import pytest

from fedra.experiment.privacy_total import add_up
from fedra.privacy.accounting import Mechanism

ONE = {"epsilon": 2.0, "delta": 1e-5, "noise": 4.0, "rate": 1.0, "releases": 10, "unit": "all data of one client"}
ONE |= {"accountant": "dp-accounting 0.6.0 PLD"}


def test_runs_are_composed_at_once():
    total = add_up([ONE, {}, {**ONE, "noise": 8.0, "releases": 40}])
    assert total.runs == 2
    assert total.epsilon == pytest.approx(Mechanism(4.0).epsilon(20, 1e-5))  # 40 / 8^2 = 10 / 4^2
    assert total.epsilon < 2 * Mechanism(4.0).epsilon(10, 1e-5)
    assert "2 private runs on the same data: together at most" in total.sentence()


def test_other_mechanisms_and_mixed_units_are_added():
    total = add_up([ONE, {**ONE, "accountant": "Skellam"}])
    assert (total.epsilon, total.delta) == (4.0, 2e-5)
    mixed = add_up([ONE, {**ONE, "unit": "one example"}])
    assert mixed.unit == "each run's unit"


def test_one_run_without_a_guarantee_leaves_none():
    shown = {key: value for key, value in ONE.items() if key != "epsilon"}
    total = add_up([ONE, shown])
    assert math.isinf(total.epsilon)
    assert total.as_dict()["epsilon"] is None
    assert "no guarantee" in total.sentence()
    assert add_up([{}, {}]) is None


def test_a_sweep_states_its_total(tmp_path, capsys):
    from fedra.config.reading import read, write
    from tiny import call, table

    settings = table(privacy={"level": "client", "delta": 1e-3, "noise": 30.0, "clip": 1.0}, rounds=1)
    path = tmp_path / "file.toml"
    path.write_text(write(read(settings)))
    code, output, errors = call(capsys, "sweep", path, "local.lr=0.1,0.2", "--out", tmp_path / "out")
    assert code == 0, errors
    assert "2 private runs on the same data" in output + errors
    assert "together at most" in (tmp_path / "out" / "table.md").read_text()
    found = json.loads((tmp_path / "out" / "privacy.json").read_text())
    assert found["epsilon"] == pytest.approx(Mechanism(30.0).epsilon(2, 1e-3))
