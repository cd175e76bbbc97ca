"""Data that are read anew take effect between two rounds, with the numbers that depend on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from own_people import FolderFederation

import tiny
from fedra.core.batches import Examples
from fedra.core.job import Job, ServerJob
from fedra.core.model import Weights
from fedra.data.clients import SeparateClients
from fedra.experiment.plan import Plan
from fedra.experiment.rounds import rounds as rounds_of
from fedra.federation import wire
from fedra.federation.federated_engine import grow_rows
from fedra.federation.folder_side import FolderSide
from fedra.federation.local_data.site_cache import has_fresh_data, refresh_data
from fedra.federation.local_data.site_data import SiteData
from fedra.federation.roster import FederationRoster, read_roster
from fedra.federation.server_build import build_server
from fedra.federation.site_job import plan_transform
from fedra.federation.wire import Packet
from fedra.runners import RUNNERS
from fedra.storage.checkpoint import load_model
from fedra.storage.state import State

pytestmark = pytest.mark.usefixtures("without_curves")
PEOPLE = {"north": ["anna", "bela"], "south": ["cleo", "dora"]}
CHANGE = 2
"""The round, counted from 1, during which the data of the north change."""


class Killed(BaseException):
    """The coordinator's process ends here."""


class Changing:
    """A federation of four rounds; in the second one new images of a person appear at the north."""

    def __init__(self, folder: Path, person: str, algorithm: str = "fedgc", match: str = "none") -> None:
        self.federation = FolderFederation(folder, PEOPLE, match=match, rounds=4, algorithm=algorithm)
        self.folder, self.person = folder, person
        self.before: list[SiteData] = []
        self.trained: list[int] = []  # examples of the north, per round
        self.hook: Callable[[int], None] = lambda round: None
        self.federation.link.sites["north"] = self.answer

    def answer(self, packet: Packet) -> Packet:
        if packet.kind != "train":
            return self.federation.nodes["north"].answer(packet)
        round = packet.read(wire.TrainAsk).round + 1
        self.hook(round)
        if round == CHANGE:
            self.change()
        answer = self.federation.nodes["north"].answer(packet)
        self.trained.append(answer.read(wire.TrainAnswer).trained[0].examples)
        return answer

    def change(self) -> None:
        if self.before:  # the round is repeated after a kill
            return
        plan, side = self.federation.plan, self.federation.sides["north"]
        self.before = [one.data(plan) for one in self.federation.sides.values()]
        self.federation.draw("north", [self.person], seed=7, first=50)
        refresh_data(self.folder / "north", side.site, plan.schema)
        assert has_fresh_data(self.folder / "north")

    def simulate(self) -> Weights:
        """Two rounds with the first data, two with the others."""
        plan, sides = self.federation.plan, self.federation.sides.values()
        roster = read_roster(self.folder / "coordinator" / "roster.json")
        later = [FolderSide(side.folder).data(plan) for side in sides]
        first = FederationRoster()
        for name, data in zip(PEOPLE, self.before, strict=True):
            words = wire.ClientWords(examples=data.sizes()[0], classes=data.classes[0])
            site = wire.SiteWords(fedra="", torch="", clients=[words], shape=(1, 8, 8))
            first = first.with_site(name, site, owned=True, equal=False)
        jobs = [self.job(first, self.before), self.job(roster, later)]
        state = State.fresh(jobs[0])
        for rounds, job in zip((CHANGE, 4), jobs, strict=True):
            state.server = replace(state.server, weights=grow_rows(job, state.server.weights))
            for _ in rounds_of(job, RUNNERS["sequential"](job), Plan(rounds, evaluate_every=99), state):
                pass
        return state.server.weights

    def job(self, roster: FederationRoster, data: list[SiteData]) -> Job:
        server = build_server(self.federation.plan, roster)
        transform = plan_transform(self.federation.plan.schema)
        names = {field: getattr(server.job, field) for field in ServerJob.__dataclass_fields__}
        return Job(**names | {"clients": SeparateClients([Examples(*one.train(0), transform) for one in data])})

    def check_bits(self) -> None:
        found = load_model(self.folder / "run" / "model.safetensors")[0]
        expected = self.simulate().params
        assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize(("person", "classes"), [("anna", 4), ("bruno", 5)])
def test_data_change_between_rounds_as_in_a_simulator_whose_data_changed(
    person: str, classes: int, tmp_path: Path
) -> None:
    """More images of a known person, and a new person, who gets a class of its own."""
    changing = Changing(tmp_path, person)
    changing.federation.run()
    assert changing.trained[:CHANGE] == [10, 10]
    assert changing.trained[CHANGE:] == [15, 15]
    roster = read_roster(tmp_path / "coordinator" / "roster.json")
    assert (roster.size(0), roster.classes) == (15, classes)
    told = changing.federation.told
    assert any(line.startswith("north: data read anew before round 3, examples 10 -> 15") for line in told)
    changing.check_bits()
    assert not has_fresh_data(tmp_path / "north")


@pytest.mark.parametrize("round", [CHANGE, CHANGE + 1])
def test_a_coordinator_that_is_killed_around_a_change_goes_on_to_the_same_bits(round: int, tmp_path: Path) -> None:
    """Also in the round after classes were added, while the checkpoint still has the fewer ones."""
    changing = Changing(tmp_path, "bruno")
    changing.hook = lambda present: kill() if present == round else None

    def kill() -> None:
        changing.hook = lambda present: None
        raise Killed

    with pytest.raises(Killed):
        changing.federation.run()
    changing.federation.run()
    changing.check_bits()


def test_a_site_that_is_killed_before_the_change_goes_on_with_its_old_data(tmp_path: Path) -> None:
    changing = Changing(tmp_path, "bruno")

    def restart(round: int) -> None:
        if round == CHANGE:
            changing.change()
            changing.federation.sides["north"] = FolderSide(tmp_path / "north")
            changing.federation.nodes["north"] = changing.federation.node("north")

    changing.hook = restart
    changing.federation.run()
    assert changing.trained == [10, 10, 15, 15]


def test_a_client_whose_people_grew_begins_again_from_the_global_model(tmp_path: Path) -> None:
    """State of fewer classes does not fit: the coordinator does not name it, and says so."""
    changing = Changing(tmp_path, "bruno", algorithm="fedfs")
    named: list[dict[int, tuple[int, int]]] = []
    passed = changing.federation.link.passed
    changing.federation.run()
    for site, question, _ in passed:
        if site == "north" and question.kind == "train":
            named.append(question.read(wire.TrainAsk).memory)
    assert named == [{}, {0: (0, 0)}, {}, {0: (2, 0)}]
    assert any("begin again from the global model: 1" in line for line in changing.federation.told)
    assert [line["round"] for line in tiny.lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]


def test_before_the_start_data_change_at_once(tmp_path: Path) -> None:
    federation = FolderFederation(tmp_path, PEOPLE, match="none")
    side = federation.sides["north"]
    assert len(side.data(federation.plan).inputs) == 12
    federation.draw("north", ["bruno"], seed=3)
    data = refresh_data(tmp_path / "north", side.site, federation.plan.schema)
    assert len(data.inputs) == 18
    assert not has_fresh_data(tmp_path / "north")
