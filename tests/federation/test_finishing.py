"""The end of a federation: personal models are made, kept and tested at the sites, as the simulator would make them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rehearsing import Rehearsed

import fedra
import tiny
from fedra.core.round import init_server
from fedra.errors import ConfigError
from fedra.evaluation.personal_models import train_personal_models
from fedra.faces.metrics import Scores
from fedra.federation import joining, wire
from fedra.federation.flower.session import SiteSession
from fedra.federation.link import Answer
from fedra.federation.site_folder import read_end
from fedra.federation.site_tests import rates_of
from fedra.federation.wire import Packet
from fedra.runners import RUNNERS
from fedra.storage.checkpoint import load_model
from fedra.storage.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("without_curves")


@pytest.mark.parametrize("name", ["fedper", "fedbabu", "ditto", "per-fedavg", "apfl"])
def test_personal_models_at_the_sites_are_the_simulators(name: str, tmp_path: Path) -> None:
    table = tiny.table(algorithm={"name": name}, rounds=2)
    rehearsed = Rehearsed(tmp_path, table)
    found = rehearsed.run()
    fedra.run(table, out=tmp_path / "simulator")
    job = rehearsed.built.job
    state = RunFolder(tmp_path / "simulator").checkpoint.load(init_server(job.algorithm, job.initial()))
    own = dict(
        train_personal_models(
            job, lambda one: RUNNERS["sequential"](one), state.server, state.memory.get, state.round, [0, 1, 2, 3]
        )
    )
    for site, clients in rehearsed.places.items():
        assert 0 <= found.summary["sites"][site]["personal_accuracy"] <= 1
        for client in clients:
            kept = "own-model.safetensors" if len(clients) == 1 else f"own-model-{client}.safetensors"
            mine, _ = load_model(tmp_path / site / kept)
            theirs = own[client]
            assert theirs is not None
            assert all(torch.equal(value, {**theirs.params, **theirs.buffers}[key]) for key, value in mine.items())


def test_personal_models_never_leave(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(algorithm={"name": "fedper"}, rounds=2))
    rehearsed.run()
    crossed = b"".join(blob for _, _, a in rehearsed.link.passed if not isinstance(a, str) for blob in a.blobs.values())
    for path in tmp_path.glob("site-*/own-model*.safetensors"):
        head = load_model(path)[0]["head.weight"]
        assert all(row.contiguous().numpy().tobytes() not in crossed for row in head)


def test_a_coordinator_killed_before_its_summary_needs_no_site_that_has_answered(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=2))
    whole = rehearsed.run().summary
    (tmp_path / "run" / "summary.json").unlink()
    rehearsed.link.sites = {}  # they have left
    again = rehearsed.run().summary
    assert again["sites"] == whole["sites"]
    assert again["model_digest"] == whole["model_digest"]


def test_a_finished_federation_served_again_ends_and_keeps_its_record(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=2))
    first = rehearsed.run()
    record, asked = (tmp_path / "run" / "summary.json").read_bytes(), len(rehearsed.link.passed)
    rehearsed.link.sites = {}
    again = rehearsed.run()
    assert "this federation is finished after 2 rounds: nothing is left to train" in rehearsed.told
    assert len(rehearsed.link.passed) == asked
    assert (again.summary, again.metrics) == (first.summary, first.metrics)
    assert all(map(torch.equal, again.model.state_dict().values(), first.model.state_dict().values()))
    assert (tmp_path / "run" / "summary.json").read_bytes() == record
    assert not (tmp_path / "run" / ".lock").exists()
    status = json.loads((tmp_path / "coordinator" / "status.json").read_text())
    assert (status["phase"], status["round"], status["accuracy"]) == ("finished", 2, first.metrics[-1]["accuracy"])
    assert {site["state"] for site in status["sites"].values()} == {"finished"}


def test_a_site_that_was_away_at_the_end_gets_the_final_model_later(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=2), rules={"patience": 0.1})
    late = rehearsed.link.sites.pop("site-3")

    def leave(packet: Packet) -> Answer:
        """Answer until the last test, and be away then."""
        if packet.kind != "evaluate" or not packet.read(wire.EvaluateAsk).final:
            return late(packet)
        del rehearsed.link.sites["site-3"]
        return "its site is away"

    rehearsed.link.sites["site-3"] = leave
    summary = rehearsed.run().summary
    assert summary["sites"]["site-3"] == {"reason": "its site is away"}
    assert read_end(tmp_path / "site-3", rehearsed.plan) is None
    assert read_end(tmp_path / "site-1", rehearsed.plan) == 2
    rehearsed.link.sites["site-3"] = late
    asked = len(rehearsed.link.passed)
    rehearsed.run()
    assert [site for site, _, _ in rehearsed.link.passed[asked:]] == ["site-3"]
    assert read_end(tmp_path / "site-3", rehearsed.plan) == 2
    assert rehearsed.nodes["site-3"].over


def test_a_run_that_failed_is_not_served_again(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=1))
    rehearsed.run()
    summary = tmp_path / "run" / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "status": "failed", "ending": "diverged"}))
    with pytest.raises(ConfigError, match="diverged: nothing is left to resume"):
        rehearsed.run()


def test_a_site_with_the_final_model_leaves_when_there_is_no_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=1))  # nobody listens at its address
    rehearsed.run()
    monkeypatch.setattr(joining, "LEAVE_AFTER", 0.2)
    told: list[str] = []
    joining.join_federation(tmp_path / "site-1", told.append)
    assert told[0] == "this site has the final model, after round 1; it stays while the coordinator is there"
    assert told[-1] == "the federation is over: the coordinator is not there anymore"


def test_a_site_that_refuses_after_it_connected_ends_with_the_code_of_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Rehearsed(tmp_path, tiny.table(rounds=1))

    def refuse(session: SiteSession) -> None:
        session._answer.__self__.refusal = "it has fedra 0.1, this federation needs 0.2"  # type: ignore[attr-defined]

    monkeypatch.setattr(SiteSession, "run", refuse)
    with pytest.raises(ConfigError, match=r"this site does not take part: it has fedra 0\.1") as raised:
        joining.join_federation(tmp_path / "site-1")
    assert raised.value.exit_code == 2  # systemd does not start it again


def test_rates_of_histograms_are_those_of_the_scores() -> None:
    draw = np.random.default_rng(3)
    genuine, impostor = draw.normal(0.5, 0.2, 400).clip(-1, 1), draw.normal(0.0, 0.2, 900).clip(-1, 1)
    bins = np.linspace(-1, 1, 201)
    eer, auroc = rates_of(np.histogram(genuine, bins)[0], np.histogram(impostor, bins)[0])
    scores = torch.from_numpy(np.concatenate([genuine, impostor]))
    same = torch.arange(1300) < 400
    exact = Scores.of_pairs(scores, same)
    assert auroc == pytest.approx(exact.auroc(), abs=0.005)
    assert eer == pytest.approx(exact.eer(), abs=0.02)
