"""Secure rounds in a federation: the simulator's sum, drop-outs, restarts, and a coordinator that cheats."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rehearsing import Rehearsed
from test_federation_plan import plan_of

import fedra
from fedra.errors import ConfigError
from fedra.experiment.cohort import FaultRule
from fedra.federation.audit_log import read_log
from fedra.federation.declared_uploads import demands_of
from fedra.federation.link import Answer
from fedra.federation.policy import Policy, refuse
from fedra.federation.secure import secure_wire
from fedra.federation.secure.secure_rounds import RECORD
from fedra.federation.server_build import check_plan
from fedra.federation.wire import Packet, Refusal, packet

TABLE: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 1.0},
    "model": {"name": "mlp", "hidden": [16]},
    "algorithm": "fedavg",
    "local": {"lr": 0.1},
    "runner": {"name": "sequential"},
    "secure": {"aggregation": "masks", "bound": 4.0, "threshold": 0.51},
}
PRIVATE: dict[str, Any] = {"level": "client", "delta": 1e-3, "noise": 1.0, "clip": 1.0, "seed": "run"}
pytestmark = pytest.mark.usefixtures("without_curves")
RULES = {"evaluation": "none", "least": 3, "deadline": 20}


def same(found: fedra.RunResult, reference: fedra.RunResult) -> bool:
    other = found.model.state_dict()
    return all(torch.equal(other[name], value) for name, value in reference.model.state_dict().items())


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"algorithm": "scaffold", "cohort": {"fraction": 0.7}},
        {"algorithm": "feddyn"},
        {"privacy": PRIVATE},
        {"privacy": {**PRIVATE, "clip": "adaptive", "noise": 0.5}},
        {"privacy": {**PRIVATE, "where": "clients"}, "algorithm": "scaffold"},
    ],
    ids=["plain", "scaffold", "feddyn", "noise of the server", "adaptive clip", "noise of the clients"],
)
def test_a_secure_federation_has_the_simulators_bits(change: dict[str, Any], tmp_path: Path) -> None:
    table = {**TABLE, **change}
    found = Rehearsed(tmp_path, table, sites=4, rules=RULES).run()
    reference = fedra.run(table)
    assert same(found, reference)
    assert found.summary.get("privacy", {}).get("trust") == reference.summary.get("privacy", {}).get("trust")


@pytest.mark.parametrize("where", ["server", "clients"])
def test_updates_that_are_not_finite_count_as_zeros_under_privacy(where: str, tmp_path: Path) -> None:
    diverging = {"algorithm": "scaffold", "local": {"lr": 1e28, "epochs": 3}, "rounds": 2}
    table = {**TABLE, **diverging, "privacy": {**PRIVATE, "where": where}}
    federation = Rehearsed(tmp_path, table, sites=4, rules=RULES)
    assert same(federation.run(), fedra.run(table))
    assert all(value.isfinite().all() for value in fedra.run(table).model.state_dict().values())


def drop(monkeypatch: pytest.MonkeyPatch, round: int, clients: list[int]) -> None:
    """Let clients be absent in a round of the simulator."""
    plain = FaultRule.absent

    def absent(self: FaultRule, cohort: Any, job: Any, number: int, attempt: int) -> dict[int, str]:
        found = plain(self, cohort, job, number, attempt)
        return {**found, **{client: "gone" for client in clients if number == round}}

    monkeypatch.setattr(FaultRule, "absent", absent)


@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "roll", "unmask"])
def test_a_site_that_drops_out_at_a_stage(stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that is gone before its masked sum is left out; after that its sum counts, and others open it."""
    federation = Rehearsed(tmp_path, TABLE, sites=4, rules=RULES)
    plain = federation.link.sites["site-2"]

    def gone(ask: Packet) -> Answer:
        secure = ask.kind in secure_wire.ANSWERS
        running = secure and federation.nodes["site-2"] and json.loads(ask.words).get("round", -1)
        gone.round = running if running not in (-1, False) else gone.round  # type: ignore[attr-defined]
        return "away" if ask.kind == stage and gone.round == 1 else plain(ask)  # type: ignore[attr-defined]

    gone.round = -1  # type: ignore[attr-defined]
    federation.link.sites["site-2"] = gone
    found = federation.run()
    if stage in ("keys", "shares", "masked"):
        drop(monkeypatch, 1, federation.places["site-2"])
    assert same(found, fedra.run(TABLE))


def test_too_few_sites_repeat_the_round(tmp_path: Path) -> None:
    federation = Rehearsed(tmp_path, TABLE, sites=4, rules=RULES)
    left = {"site-2": 1, "site-3": 1}
    for site in left:
        plain = federation.link.sites[site]

        def once(ask: Packet, site: str = site, plain: Callable[[Packet], Answer] = plain) -> Answer:
            if ask.kind == "masked" and left[site]:
                left[site] -= 1
                return "away"
            return plain(ask)

        federation.link.sites[site] = once
    found = federation.run()
    assert same(found, fedra.run(TABLE))  # without noise a repeated round has the same sum
    asked = {ask.digest for _, ask, _ in federation.link.passed if ask.kind == "keys"}
    assert len(asked) == 4 * 4  # three rounds, one of them twice


def test_every_site_restarts_between_all_stages(tmp_path: Path) -> None:
    """All that a site knows is in its folder, with its secrets readable by the owner alone."""
    federation = Rehearsed(tmp_path, TABLE, sites=3, rules=RULES)
    modes = set()
    for name in federation.places:

        def fresh(ask: Packet, name: str = name) -> Answer:
            federation.nodes[name] = federation.node(name)
            answer = federation.nodes[name].answer(ask)
            for path in (tmp_path / name / "state" / "secure").glob("*.json"):
                modes.add(path.stat().st_mode & 0o777)
            return answer

        federation.link.sites[name] = fresh
    found = federation.run()
    assert same(found, fedra.run(TABLE))
    assert modes == {0o600}
    for name in federation.places:
        assert not (tmp_path / name / "state" / "secure" / "round.json").exists()


@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "roll", "unmask"])
def test_a_coordinator_that_stops_after_a_stage_goes_on_with_the_same_round(stage: str, tmp_path: Path) -> None:
    federation = Rehearsed(tmp_path, TABLE, sites=3, rules=RULES)
    plain = federation.link.sites["site-3"]
    stopped = []

    def stop(ask: Packet) -> Answer:
        answer = plain(ask)
        if ask.kind == stage and len(stopped) < 2:
            stopped.append(ask.digest)
            raise KeyboardInterrupt
        return answer

    federation.link.sites["site-3"] = stop
    for _ in range(2):
        with pytest.raises(BaseException, match=r"interrupted|stopped|"):
            federation.run()
    found = federation.run()
    assert same(found, fedra.run(TABLE))
    names = {json.loads(ask.words)["name"] for _, ask, _ in federation.link.passed if ask.kind in secure_wire.ANSWERS}
    assert len(names) == 3
    assert (tmp_path / "coordinator" / RECORD).exists()


def test_what_leaves_a_site_is_in_its_log_and_looks_random(tmp_path: Path) -> None:
    federation = Rehearsed(tmp_path, TABLE, sites=3, rules=RULES)
    federation.run()
    kinds = {ask.kind for _, ask, _ in federation.link.passed}
    assert "train" not in kinds
    lines = [line for line in read_log(tmp_path / "site-1" / "log.jsonl") if line["event"] == "sent"]
    masked = [line for line in lines if line["kind"] == "masked"]
    assert len(masked) == 3
    assert [tensor[0] for line in masked for tensor in line["tensors"]] == ["masked"] * 3
    assert set(masked[0]["words"]) == {"clients", "remembers", "restarted"}
    sums = [
        answer.tree("own")["masked"].numpy()
        for site, ask, answer in federation.link.passed
        if ask.kind == "masked" and isinstance(answer, Packet)
    ]
    counts = np.bincount(np.concatenate(sums).view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 370  # chi-square with 255 degrees: 1e-5 lies at 358


# a coordinator that cheats


class Cheated:
    """A federation in which a question to one site is changed on its way."""

    def __init__(self, folder: Path) -> None:
        self.federation = Rehearsed(folder, {**TABLE, "rounds": 1}, sites=4, rules=RULES)
        self.refusals: list[str] = []

    def change(self, kind: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        plain = self.federation.link.sites["site-1"]

        def answer(ask: Packet) -> Answer:
            if ask.kind != kind or self.refusals:
                return plain(ask)
            found = plain(Packet(ask.kind, json.dumps(change(json.loads(ask.words))), ask.blobs))
            assert isinstance(found, Packet)
            self.refusals.append(found.read(Refusal).reason if found.kind == "refused" else "")
            return found

        self.federation.link.sites["site-1"] = answer

    def run(self) -> str:
        with contextlib.suppress(fedra.FedraError):
            self.federation.run()
        return self.refusals[0]


def overlap(words: dict[str, Any]) -> dict[str, Any]:
    return {**words, "dropped": [words["answered"][-1]]}


def rename(words: dict[str, Any]) -> dict[str, Any]:
    members = [{**one, "certificate": words["members"][0]["certificate"]} for one in words["members"]]
    return {**words, "members": members}


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("roll", overlap, "both secrets would be revealed"),
        ("roll", lambda words: {**words, "answered": words["answered"][1:]}, "must be among those who answered"),
        ("unmask", lambda words: {**words, "answered": words["answered"][:-1]}, "the one that this client signed"),
        ("unmask", lambda words: {**words, "signatures": {}}, "must be there, got 0"),
        ("keys", lambda words: {**words, "members": words["members"][:2]}, "at least 3 members, got 2"),
        ("keys", rename, "one key twice"),
        ("keys", lambda words: {**words, "mechanism": "sum of everything"}, "agree on clip and noise"),
        ("keys", lambda words: {**words, "layout": "0" * 64}, "agree on the layout"),
        ("keys", lambda words: {**words, "length": words["length"] + 1}, "numbers, got"),
        ("keys", lambda words: {**words, "clip": 1.0}, "must be the plan's"),
        ("keys", lambda words: {**words, "clients": []}, "with its key and its clients"),
        ("shares", lambda words: {**words, "keys": dict(list(words["keys"].items())[:1])}, "got 2"),
        ("masked", lambda words: {**words, "attempt": 5}, "the one whose keys were asked for"),
        ("masked", lambda words: {**words, "boxes": dict.fromkeys(words["boxes"], "00" * 82)}, "they were altered"),
    ],
)
def test_a_coordinator_that_cheats_is_refused(
    kind: str, change: Callable[[dict[str, Any]], dict[str, Any]], reason: str, tmp_path: Path
) -> None:
    cheated = Cheated(tmp_path)
    cheated.change(kind, change)
    assert reason in cheated.run()


def test_a_repeated_round_and_a_second_roll_are_refused(tmp_path: Path) -> None:
    federation = Rehearsed(tmp_path, TABLE, sites=3, rules=RULES)
    federation.run()
    asks = {ask.kind: ask for site, ask, _ in federation.link.passed if site == "site-1"}

    def refusal(kind: str, **change: Any) -> str:
        changed = {**json.loads(asks[kind].words), **change}
        answer = federation.nodes["site-1"].answer(Packet(kind, json.dumps(changed), asks[kind].blobs))
        return answer.read(Refusal).reason if answer.kind == "refused" else ""

    name = "ab" * 16
    assert "was unmasked already" in refusal("keys", name=name)
    assert "was unmasked already" in refusal("keys", name=name, attempt=1)
    assert "was unmasked already" in refusal("keys", name=name, round=0)
    assert "in no secure round" in refusal("roll", answered=[0, 1, 2], dropped=[], name=name)
    assert "in no secure round" in refusal("unmask", dropped=[1], answered=[0, 2])
    plain = packet("train", asks["masked"].read(secure_wire.MaskedAsk))
    words = {key: value for key, value in json.loads(plain.words).items() if key not in ("name", "boxes")}
    answer = federation.nodes["site-1"].answer(Packet("train", json.dumps(words), asks["masked"].blobs))
    assert "a single update does not leave" in answer.read(Refusal).reason


def test_a_key_that_changes_is_refused(tmp_path: Path) -> None:
    federation = Rehearsed(tmp_path, TABLE, sites=3, rules=RULES)
    federation.run()
    peers = tmp_path / "site-1" / "state" / "secure" / "peers.json"
    known = json.loads(peers.read_text())
    assert set(known["fingerprints"]) == {"site-2", "site-3"}
    assert any("secure rounds with site-2, fingerprint" in line for line in federation.told)


def test_policies_about_secure_aggregation() -> None:
    demanding = Policy.model_validate({"secure_aggregation": "required"})
    secure = plan_of({"sites": 3, "least": 3}, secure={"aggregation": "masks"})
    assert not [line for line in refuse(demands_of(secure), demanding) if "secure" in line]
    assert [line for line in refuse(demands_of(plan_of()), demanding) if "sees each update" in line]
    assert not [line for line in refuse(demands_of(secure), Policy()) if "secure" in line]


def test_a_secure_plan_needs_three_sites() -> None:
    with pytest.raises(ConfigError, match="a secure sum needs at least 3 sites, got"):
        check_plan(plan_of({"sites": 2, "least": 2}, secure={"aggregation": "masks"}))
    check_plan(plan_of({"sites": 3, "least": 3}, secure={"aggregation": "masks"}))
