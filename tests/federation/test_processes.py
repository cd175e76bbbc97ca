"""Coordinator and sites as processes over loopback TLS: the simulator's bits, whoever is killed and whenever."""

from __future__ import annotations

import random
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from federation_processes import LIMIT, Processes

import fedra
import tiny
from fedra.federation.audit_log import verify_log
from fedra.federation.rehearsal import rehearse
from fedra.federation.site_memory import SiteMemory
from fedra.storage.checkpoint import load_model

FACES: dict[str, Any] = {
    "data": {"name": "synthetic-faces", "identities": 6, "images": 8, "size": 32, "test_identities": 0},
    "partition": {"name": "identity", "clients": 3},
    "model": {"name": "mlp", "hidden": [8]},
}
PUBLIC = {**FACES["data"], "identities": 4, "seed": 9}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def same_model(one: Path, other: Path) -> bool:
    left, right = (load_model(path / "model.safetensors")[0] for path in (one, other))
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


def test_a_rehearsal_has_the_simulators_bits(tmp_path: Path, without_curves: None) -> None:
    (tmp_path / "c.toml").write_text("")
    found = rehearse(tmp_path / "c.toml", tiny.WORDS, sites=2, out=tmp_path / "out")
    assert found.equal is True
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert found.result.summary["status"] == "finished"
    for line in tiny.metrics(tmp_path / "out"):
        assert line["sites_accuracy"] == pytest.approx(line["accuracy"])
    for site in ("site-1", "site-2"):
        assert verify_log(tmp_path / "out" / "federation" / site / "log.jsonl")[0] > 5
        assert (tmp_path / "out" / "federation" / site / "model.safetensors").exists()
        mode = (tmp_path / "out" / "federation" / site / "key.pem").stat().st_mode
        assert mode & 0o077 == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "table",
    [
        tiny.table(algorithm={"name": "scaffold"}, cohort={"fraction": 0.5}, rounds=4),
        tiny.table(**FACES, algorithm={"name": "fedgc"}, rounds=3),
        tiny.table(**FACES, algorithm={"name": "fedfs"}, rounds=3),
        tiny.table(**FACES, public=PUBLIC, algorithm={"name": "fedfr"}, rounds=2),
    ],
    ids=["scaffold", "fedgc", "fedfs", "fedfr"],
)
def test_processes_have_the_simulators_bits(table: dict[str, Any], tmp_path: Path) -> None:
    processes = Processes(tmp_path, table)
    processes.run()
    fedra.run(table, out=tmp_path / "simulator")
    assert same_model(processes.record, tmp_path / "simulator"), processes.output()


@pytest.mark.slow
def test_kill_9_of_a_site_in_mid_round_and_of_the_coordinator_in_mid_checkpoint(tmp_path: Path) -> None:
    """The site is killed while it trains round two; the coordinator when the third checkpoint is half written."""
    table = tiny.table(algorithm={"name": "scaffold"}, rounds=5, local={"epochs": 60, "batch": 10, "lr": 0.01})
    processes = Processes(tmp_path, table)
    killed: list[str] = []

    def kill(running: Processes, since: float) -> None:
        written = [path.name for path in (running.record / "checkpoint").glob("server-*")]
        if "site-2" not in killed and any("server-000001" in name for name in written):
            killed.append("site-2")
            running.kill("site-2")
        elif "coordinator" not in killed and any("server-000003" in name for name in written):
            killed.append("coordinator")
            running.kill("coordinator")

    processes.run(kill)
    assert killed == ["site-2", "coordinator"]
    fedra.run(table, out=tmp_path / "simulator")
    assert same_model(processes.record, tmp_path / "simulator"), processes.output()
    assert [line["round"] for line in tiny.metrics(processes.record)] == [1, 2, 3, 4, 5]
    for name in processes.federation.places:
        memory = SiteMemory(tmp_path / name / "state" / "memory")
        assert {memory.newest(client) for client in memory.clients()} == {(4, 0)}


@pytest.mark.slow
def test_a_storm_of_kills_ends_with_the_same_bits(tmp_path: Path) -> None:
    table = tiny.table(algorithm={"name": "scaffold"}, rounds=8, local={"epochs": 40, "batch": 10, "lr": 0.01})
    processes = Processes(tmp_path, table)
    draw = random.Random(5)
    left, due = 4, 8.0

    def storm(running: Processes, since: float) -> None:
        nonlocal left, due
        if left and since > due:
            left, due = left - 1, since + 4 + 3 * draw.random()
            running.kill(draw.choice(list(running.running)))

    processes.run(storm)
    fedra.run(table, out=tmp_path / "simulator")
    assert same_model(processes.record, tmp_path / "simulator"), processes.output()


LIMITED = "ip link set lo up mtu 1500 && tc qdisc add dev lo root tbf rate 20mbit burst 256kb latency 400ms"
"""A network of its own, whose loopback carries 20 Mbit/s."""


@pytest.mark.slow
def test_a_rehearsal_on_a_limited_loopback_has_the_simulators_bits(tmp_path: Path) -> None:
    namespace = ["unshare", "--map-root-user", "--net", "sh", "-c"]
    try:
        allowed = subprocess.run([*namespace, LIMITED], capture_output=True, timeout=30).returncode == 0
    except OSError:
        allowed = False
    if not allowed:
        pytest.skip("a network namespace with a limited loopback is not allowed here")
    (tmp_path / "c.toml").write_text("")
    words = [sys.executable, "-m", "fedra.cli", "federate", "try", str(tmp_path / "c.toml"), *tiny.WORDS]
    words += ["model={name='mlp', hidden=[300, 300]}", "rounds=2", "--sites", "2", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*namespace, f"{LIMITED} && exec {shlex.join(words)}"], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    assert "equal to the simulator's model, bit for bit" in done.stdout
