"""A coordinator's run: the simulator's record and bits, resumed after any break, with late, absent and odd sites."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from rehearsing import Rehearsed

import fedra
import tiny
from fedra.core.job import Job, ServerJob
from fedra.core.model import Weights
from fedra.data.clients import SeparateClients
from fedra.errors import RunError
from fedra.experiment.plan import Plan
from fedra.experiment.rounds import rounds as rounds_of
from fedra.federation import wire
from fedra.federation.audit_log import read_log, verify_log
from fedra.federation.federated_engine import grow_rows
from fedra.federation.folder_side import FolderSide
from fedra.federation.link import NOT_ADMITTED, Answer
from fedra.federation.roster import FederationRoster
from fedra.federation.serve import Coordinator
from fedra.federation.server_build import build_server
from fedra.federation.site_node import SiteNode
from fedra.federation.wire import Packet
from fedra.runners import RUNNERS
from fedra.storage.checkpoint import load_model
from fedra.storage.state import State

pytestmark = pytest.mark.usefixtures("without_curves")
TABLE = tiny.table()


class Killed(BaseException):
    """The coordinator's process ends here."""


def same_model(one: Path, other: Path) -> bool:
    left, right = (load_model(path / "model.safetensors")[0] for path in (one, other))
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedper"])
def test_a_run_is_the_simulators(name: str, tmp_path: Path) -> None:
    table = tiny.table(algorithm={"name": name})
    rehearsed = Rehearsed(tmp_path, table)
    found = rehearsed.run()
    simulator = fedra.run(table, out=tmp_path / "simulator")
    assert same_model(tmp_path / "run", tmp_path / "simulator")
    for mine, theirs in zip(tiny.metrics(tmp_path / "run"), tiny.metrics(tmp_path / "simulator"), strict=True):
        assert mine["train_loss"] == theirs["train_loss"]
        assert (mine["accuracy"], mine["loss"]) == (theirs["accuracy"], theirs["loss"])
        assert mine["clients"] == theirs["clients"]
    lines = tiny.lines(tmp_path / "run" / "clients.jsonl")
    assert {line["site"] for line in lines} == set(rehearsed.places)
    assert {line["site"] for line in tiny.lines(tmp_path / "run" / "sites.jsonl")} == set(rehearsed.places)
    status = json.loads((tmp_path / "coordinator" / "status.json").read_text())
    assert (status["phase"], status["round"]) == ("finished", 3)
    assert found.summary["status"] == simulator.summary["status"] == "finished"
    assert set(found.summary["sites"]) == set(rehearsed.places)


FACES = {"name": "synthetic-faces", "identities": 6, "images": 6, "size": 32, "test_identities": 6, "pairs": 60}


def test_accuracy_means_what_it_means_in_the_simulator(tmp_path: Path) -> None:
    """Of faces too: verification of unseen people, while the sites' metrics are about their own people."""
    table = tiny.table(algorithm={"name": "fedgc"}, rounds=1, data=FACES, partition={"name": "identity", "clients": 3})
    Rehearsed(tmp_path / "both", table).run()
    fedra.run(table, out=tmp_path / "simulator")
    (mine,), (theirs,) = tiny.metrics(tmp_path / "both" / "run"), tiny.metrics(tmp_path / "simulator")
    assert (mine["accuracy"], mine["auroc"]) == (theirs["accuracy"], theirs["auroc"])
    assert "sites_accuracy" in mine
    Rehearsed(tmp_path / "sites", table, rules={"evaluation": "sites"}).run()
    runs = [tmp_path / name / "run" for name in ("both", "sites")]
    assert fedra.compare(runs).notes == ("note: the runs have different tests: a test set, images held out by sites",)
    assert fedra.compare([runs[0], runs[0]]).notes == ()


def test_the_pooled_accuracy_of_all_sites_is_the_servers(tmp_path: Path) -> None:
    """The sites' held-out examples are together the server's test set."""
    Rehearsed(tmp_path, TABLE).run()
    for line in tiny.metrics(tmp_path / "run"):
        assert line["sites_accuracy"] == pytest.approx(line["accuracy"])
        assert line["sites_worst_accuracy"] <= line["accuracy"]


@pytest.mark.parametrize("place", ["train", "evaluate", "start"])
@pytest.mark.parametrize("when", [1, 4, 7])
def test_a_coordinator_that_is_killed_goes_on_to_the_same_bits(place: str, when: int, tmp_path: Path) -> None:
    table = tiny.table(algorithm={"name": "scaffold"}, rounds=3)
    rehearsed, calls = Rehearsed(tmp_path / "a", table), 0

    def answer(name: str, packet: Packet) -> Answer:
        nonlocal calls
        calls += packet.kind == place
        if calls == when and packet.kind == place:
            calls += 1
            raise Killed
        return rehearsed.nodes[name].answer(packet)

    rehearsed.link.sites = {name: lambda packet, name=name: answer(name, packet) for name in rehearsed.places}  # type: ignore[misc]
    try:
        rehearsed.run()
    except Killed:
        rehearsed.nodes = {name: rehearsed.node(name) for name in rehearsed.places}
        rehearsed.link._waiting.clear()
        rehearsed.run()
    whole = Rehearsed(tmp_path / "b", table)
    whole.run()
    assert same_model(tmp_path / "a" / "run", tmp_path / "b" / "run")
    clients = [(tmp_path / x / "run" / "clients.jsonl").read_text() for x in "ab"]
    assert clients[0] == clients[1]


def test_a_site_asked_twice_sends_its_first_answer(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(algorithm={"name": "scaffold"}))
    rehearsed.run()
    site, question, first = next(
        one for one in rehearsed.link.passed if one[1].kind == "train" and '"round":2' in one[1].words
    )
    again = rehearsed.node(site).answer(question)
    assert isinstance(first, Packet)
    assert again.digest == first.digest
    assert "'train' is sent again" in rehearsed.told


def test_lost_state_begins_again_and_is_told(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(algorithm={"name": "scaffold"}, rounds=2))

    def answer(packet: Packet) -> Answer:
        if packet.kind == "train" and '"round":1' in packet.words:
            for path in (tmp_path / "site-1" / "state" / "memory").rglob("*.safetensors"):
                path.unlink()
        return rehearsed.nodes["site-1"].answer(packet)

    rehearsed.link.sites["site-1"] = answer
    rehearsed.run()
    restarted = [line for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if "restarted" in line]
    assert {line["site"] for line in restarted} == {"site-1"}
    assert "lost at the site" in restarted[0]["restarted"]


def test_an_absent_site_is_dropped_with_the_reason_and_comes_back(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, TABLE)
    away = iter([True, False, False])

    def answer(packet: Packet) -> Answer:
        if packet.kind == "train" and next(away):
            return "its site is away"
        return rehearsed.nodes["site-3"].answer(packet)

    rehearsed.link.sites["site-3"] = answer
    rehearsed.run()
    lines = [line for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if line["site"] == "site-3"]
    assert [line.get("dropped") for line in lines] == ["its site is away", None, None]


def test_a_site_that_is_gone_for_good_does_not_hold_a_resumed_federation(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, TABLE, rules={"sites": 2, "patience": 1})
    rounds = 0

    def answer(packet: Packet) -> Answer:
        nonlocal rounds
        rounds += packet.kind == "train"
        if rounds == 2:
            raise Killed
        return rehearsed.nodes["site-1"].answer(packet)

    alone = rehearsed.link.sites["site-1"]
    rehearsed.link.sites["site-1"] = answer
    with pytest.raises(Killed):
        rehearsed.run()
    rehearsed.link._waiting.clear()
    rehearsed.link.sites = {"site-1": alone, "site-2": rehearsed.link.sites["site-2"]}
    rehearsed.run()
    lines = [line for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if line["site"] == "site-3"]
    assert [line.get("dropped") for line in lines] == [None, "away", "away"]


def test_a_site_that_refused_is_asked_again_after_its_policy_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedra.federation.serve.ASK_AGAIN", 0.0)
    rehearsed = Rehearsed(tmp_path, TABLE)
    path = tmp_path / "site-2" / "site.toml"
    kept = path.read_text()
    path.write_text(kept.replace("rounds = 1000000", "rounds = 2"))
    rehearsed.nodes["site-2"] = rehearsed.node("site-2")
    asked = 0

    def answer(packet: Packet) -> Answer:
        nonlocal asked
        asked += packet.kind == "describe"
        if asked == 2:
            path.write_text(kept)
            rehearsed.nodes["site-2"] = rehearsed.node("site-2")
        return rehearsed.nodes["site-2"].answer(packet)

    rehearsed.link.sites["site-2"] = answer
    rehearsed.run()
    assert {line["site"] for line in tiny.lines(tmp_path / "run" / "clients.jsonl")} == set(rehearsed.places)


def test_a_removed_site_is_called_so(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=2))
    answer = rehearsed.link.sites["site-3"]
    rehearsed.link.sites["site-3"] = lambda packet: NOT_ADMITTED if packet.kind == "train" else answer(packet)
    coordinator = rehearsed.coordinator()
    coordinator.run()
    assert coordinator.watch.sites["site-3"].state == "removed"
    dropped = [line for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if "dropped" in line]
    assert {(line["site"], line["dropped"]) for line in dropped} == {("site-3", "its site is not admitted anymore")}


def test_fewer_sites_than_least_are_never_combined(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=1, faults={"quorum": 0.0}), rules={"least": 3})
    answers = iter(["its site is away", None])

    def answer(packet: Packet) -> Answer:
        if packet.kind == "train" and (reason := next(answers)):
            return reason
        return rehearsed.nodes["site-1"].answer(packet)

    rehearsed.link.sites["site-1"] = answer
    rehearsed.run()
    lines = tiny.lines(tmp_path / "run" / "clients.jsonl")
    first = [line["dropped"] for line in lines if "attempt" not in line]
    assert "fewer than 3 sites answered" in first
    assert all("dropped" not in line for line in lines if line.get("attempt") == 2)


@pytest.mark.parametrize("name", ["scaffold", "fedgc"])
def test_a_site_joins_late_as_in_a_simulator_whose_job_grew(name: str, tmp_path: Path) -> None:
    data = {"name": "synthetic", "examples": 90, "test_examples": 40, "classes": 8, "shape": [6]}
    partition = (
        {"name": "shards", "clients": 4, "shards": 2} if name == "scaffold" else {"name": "identity", "clients": 4}
    )
    table = tiny.table(algorithm={"name": name}, rounds=4, data=data, partition=partition)
    rehearsed = Rehearsed(tmp_path, table, rules={"sites": 2, "evaluation": "none"})
    (tmp_path / "coordinator" / "roster.json").unlink()
    late = rehearsed.link.sites.pop("site-3")
    rounds = 0

    def answer(packet: Packet) -> Answer:
        nonlocal rounds
        rounds += packet.kind == "train"
        if rounds == 2:
            rehearsed.link.sites["site-3"] = late
        return rehearsed.nodes["site-1"].answer(packet)

    rehearsed.link.sites["site-1"] = answer
    coordinator = rehearsed.coordinator()
    coordinator.run()
    lines = tiny.lines(tmp_path / "run" / "clients.jsonl")
    assert {line["round"] for line in lines if line["site"] == "site-3"} == {3, 4}
    assert any(line.startswith("joined before round 3: site-3") for line in rehearsed.told)
    simulated = simulate_growth(rehearsed, coordinator)
    found = load_model(tmp_path / "run" / "model.safetensors")[0]
    assert all(torch.equal(found[key], value) for key, value in simulated.params.items())


def simulate_growth(rehearsed: Rehearsed, coordinator: Coordinator) -> Weights:
    """The same rounds in the simulator: two with three clients, two with four, whose classes come as blocks."""
    whole, roster = rehearsed.built.job, coordinator.roster
    owned = whole.owners is not None

    def job(clients: int) -> Job:
        server = build_server(
            rehearsed.plan, FederationRoster(clients=roster.clients[:clients], classes=count(clients))
        )
        names = {field: getattr(server.job, field) for field in ServerJob.__dataclass_fields__}
        return Job(**names | {"clients": SeparateClients([whole.clients[client] for client in range(clients)])})

    def count(clients: int) -> int:
        return sum(len(one.holds or ()) for one in roster.clients[:clients]) if owned else roster.classes

    first, second = job(3), job(4)
    state = State.fresh(first)
    for _ in rounds_of(first, RUNNERS["sequential"](first), Plan(2, evaluate_every=99), state):
        pass
    state.server = replace(state.server, weights=grow_rows(second, state.server.weights))
    for _ in rounds_of(second, RUNNERS["sequential"](second), Plan(4, evaluate_every=99), state):
        pass
    return state.server.weights


def test_a_policy_that_refuses_ends_before_anything_is_sent(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, TABLE, rules={"sites": 2})
    (tmp_path / "coordinator" / "roster.json").unlink()
    path = tmp_path / "site-2" / "site.toml"
    path.write_text(
        path.read_text().replace("epochs = 1000000", "epochs = 1").replace("rounds = 1000000", "rounds = 2")
    )
    rehearsed.nodes["site-2"] = rehearsed.node("site-2")
    rehearsed.run()
    assert any("policy.rounds = 2 at most: the plan has 3" in line for line in rehearsed.told)
    assert {line["site"] for line in tiny.lines(tmp_path / "run" / "clients.jsonl")} == {"site-1", "site-3"}
    assert not (tmp_path / "site-2" / "state" / "start.safetensors").exists()


def test_a_gateway_trains_its_clients_in_a_stack(tmp_path: Path) -> None:
    """Thirty clients at two sites: more than fit into one message, by the runner that a gateway chooses itself."""
    data = {"name": "synthetic", "examples": 400, "test_examples": 40, "classes": 4, "shape": [6]}
    table = tiny.table(algorithm={"name": "scaffold"}, rounds=2, data=data, partition={"name": "iid", "clients": 30})
    rehearsed = Rehearsed(tmp_path, table, sites=1, rules={"sites": 1})
    node = SiteNode(tmp_path / "site-1", FolderSide(tmp_path / "site-1"), "auto")
    rehearsed.nodes["site-1"] = node
    rehearsed.run()
    asked = [question for _, question, _ in rehearsed.link.passed if question.kind == "train"]
    assert [len(question.read(wire.TrainAsk).cohort) for question in asked] == [25, 5, 25, 5]
    fedra.run(table, out=tmp_path / "simulator")
    left, right = (load_model(tmp_path / x / "model.safetensors")[0] for x in ("run", "simulator"))
    assert max(float((value - right[name]).abs().max()) for name, value in left.items()) < 1e-5


def test_a_site_trains_in_its_hours_alone(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=1))
    path = tmp_path / "site-1" / "site.toml"
    path.write_text(path.read_text().replace('hours = ""', 'hours = "19:00-07:00"'))
    side = FolderSide(tmp_path / "site-1")
    assert side.policy.hours
    clock = [datetime(2026, 1, 1, 12, 0)]
    rehearsed.nodes["site-1"] = SiteNode(tmp_path / "site-1", side, "sequential", now=lambda: clock[0])
    rehearsed.run()
    lines = tiny.lines(tmp_path / "run" / "clients.jsonl")
    assert {line.get("dropped") for line in lines if line["site"] == "site-1"} == {
        "not now: policy.hours = '19:00-07:00'"
    }
    assert all("dropped" not in line for line in lines if line["site"] != "site-1")


def test_another_plan_is_refused(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, TABLE)
    rehearsed.run()
    ask = wire.TrainAsk(plan="0" * 64, round=0, attempt=0, cohort=[0], clients=1, examples=1, memory={})
    answer = rehearsed.nodes["site-1"].answer(wire.packet("train", ask))
    assert answer.read(wire.Refusal).reason == "the message belongs to another plan than the one this site approved"


def test_a_version_that_differs_is_refused(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, TABLE)
    ask = wire.DescribeAsk(fedra="9.9", wire=wire.WIRE, plan=rehearsed.plan.public)
    refusal = rehearsed.nodes["site-1"].answer(wire.packet("describe", ask)).read(wire.Refusal)
    assert f"it has fedra {fedra.__version__}, this federation needs 9.9" in refusal.reason
    assert rehearsed.nodes["site-1"].over


def test_a_client_of_another_site_is_refused(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, TABLE)
    rehearsed.run()
    ask = wire.TrainAsk(plan=rehearsed.plan.digest, round=0, attempt=0, cohort=[3], clients=1, examples=1, memory={})
    reason = rehearsed.nodes["site-1"].answer(wire.packet("train", ask)).read(wire.Refusal).reason
    assert reason == "client 3 is not at this site"


def test_the_log_of_a_site_lists_every_tensor_that_left(tmp_path: Path) -> None:
    Rehearsed(tmp_path, TABLE).run()
    assert verify_log(tmp_path / "site-1" / "log.jsonl")[0] > 10
    sent = [line for line in read_log(tmp_path / "site-1" / "log.jsonl") if line["event"] == "sent"]
    trained = [line for line in sent if line["kind"] == "train"]
    names = {name for line in trained for name, *_ in line["tensors"]}
    assert names == {f"{client}|delta|{name}" for client in (0, 1) for name in _names(tmp_path)}
    assert all(not line["tensors"] for line in sent if line["kind"] != "train")


def _names(folder: Path) -> Any:
    return load_model(folder / "run" / "model.safetensors")[0].keys()


def test_under_quorum_with_all_paused_the_run_ends_with_the_reasons(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=1))

    def poisoned(name: str) -> Any:
        def answer(packet: Packet) -> Answer:
            found = rehearsed.nodes[name].answer(packet)
            return Packet("train", "{}") if packet.kind == "train" else found

        return answer

    rehearsed.link.sites = {name: poisoned(name) for name in rehearsed.places}
    with pytest.raises(RunError, match="3 refused answers in a row"):
        rehearsed.run()
