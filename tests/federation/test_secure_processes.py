"""Secure rounds over loopback TLS: four sites as processes, one of them killed between sharing and sending."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from test_processes import Processes, same_model
from test_secure_federation import PRIVATE, TABLE, drop

import fedra
from fedra.federation.audit_log import verify_log
from fedra.federation.secure.secure_rounds import RECORD

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.mark.parametrize("change", [{}, {"privacy": PRIVATE}], ids=["masks", "masks and privacy"])
def test_a_site_killed_between_shares_and_masked(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of round two is that of the three other sites, exactly."""
    table = {**TABLE, **change, "rounds": 2, "local": {"lr": 0.05, "epochs": 10, "batch": 5}}
    processes = Processes(tmp_path, table, sites=4, least=3, patience=15, deadline=120)
    record = tmp_path / "coordinator" / RECORD
    seen: list[str] = []

    def kill(running: Processes, since: float) -> None:
        found = json.loads(record.read_text()) if record.exists() else {"round": -1, "passed": {}}
        if not seen and found["round"] == 1 and "site-2" in found["passed"].get("shares", ()):
            running.running["site-2"].send_signal(signal.SIGKILL)
            running.running["site-2"].wait()
            seen.append("killed")

    processes.run(kill)
    passed = json.loads(record.read_text())["passed"]
    assert seen == ["killed"]
    assert "site-2" in passed["shares"]
    assert "site-2" not in passed["masked"]
    drop(monkeypatch, 1, processes.federation.places["site-2"])
    fedra.run(table, out=tmp_path / "simulator")
    assert same_model(processes.record, tmp_path / "simulator"), processes.output()
    lines = [json.loads(line) for line in (processes.record / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    for name in processes.federation.places:
        assert verify_log(tmp_path / name / "log.jsonl")[0] > 10
        left = (tmp_path / name / "state" / "secure" / "round.json").exists()
        assert left == (name == "site-2")  # the killed one still has its secrets
