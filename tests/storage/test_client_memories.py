"""What clients remember over a run: the same bits wherever it lies."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import fedra
import tiny
import toy
from fedra.algorithms import ENTRIES, moon
from fedra.core.sharing import Sharing
from fedra.core.tree import flatten
from fedra.errors import RunFailed
from fedra.experiment import run as experiment
from fedra.experiment.cohort import CohortRule
from fedra.experiment.plan import Plan
from fedra.experiment.rounds import rounds
from fedra.parts.personalize import FineTune
from fedra.storage.checkpoint import Checkpoint
from fedra.storage.client_state import ClientFiles, ClientStates
from fedra.storage.state import State
from remembering import config, longer, manifest_of, settle

pytestmark = pytest.mark.usefixtures("without_curves")


@pytest.mark.parametrize("ending", ["finished", "failed"])
def test_the_temporary_folder_goes_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ClientStates, "_make_room", _eagerly(ClientStates._make_room))
    made: list[str] = []
    real = ClientFiles.write
    monkeypatch.setattr(
        ClientFiles, "write", lambda self, *words: (made.append(str(self.folder)), real(self, *words))[1]
    )
    if ending == "failed":
        with pytest.raises(RunFailed):
            fedra.run(config(memory={"ram": 0}, faults={"dropout": 0.9, "quorum": 0.9, "retries": 0}, seed=3))
    else:
        fedra.run(config(memory={"ram": 0}))
        assert made
    assert all(folder.startswith(str(tmp_path)) for folder in made)
    assert [path for path in tmp_path.iterdir() if path.name.startswith("fedra-clients")] == []


def _eagerly(make_room: Any) -> Any:
    """Spills wait for nobody: the writer is let finish first, so that it is never found busy."""

    def eager(self: ClientStates) -> None:
        self._writer.wait()
        make_room(self)

    return eager


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_equal_bits_for_any_cap_reader_runner_and_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    fedra.run(config(memory={"precision": precision}), out=tmp_path / "ram")
    wanted = tiny.record(tmp_path / "ram")
    for ram in (0, 0.001):
        fedra.run(config(memory={"precision": precision, "ram": ram}), out=tmp_path / f"{ram}")
        assert tiny.record(tmp_path / f"{ram}") == wanted
    half = config(memory={"precision": precision, "ram": 0})
    fedra.run({**half, "rounds": 2}, out=tmp_path / "half")
    longer(tmp_path / "half")
    experiment.resume(tmp_path / "half")
    assert tiny.record(tmp_path / "half") == wanted
    workers = config(memory={"precision": precision, "ram": 0}, runner={"name": "processes", "workers": 2})
    fedra.run(workers, out=tmp_path / "processes")
    assert tiny.record(tmp_path / "processes") == wanted
    monkeypatch.setattr(ClientStates, "_resume_reading", lambda self: None)
    fedra.run(half, out=tmp_path / "unread")
    assert tiny.record(tmp_path / "unread") == wanted


def test_precision_changes_the_result(tmp_path: Path) -> None:
    for precision in ("float32", "bfloat16"):
        fedra.run(config(memory={"precision": precision}), out=tmp_path / precision)
    assert tiny.record(tmp_path / "float32")["model"] != tiny.record(tmp_path / "bfloat16")["model"]


def test_two_runs_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rounds take turns, and neither finds the other's clients."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ClientStates, "_make_room", _eagerly(ClientStates._make_room))
    jobs = [toy.job(moon(), seed=seed) for seed in (1, 2)]

    def training(work: Any, ram: float) -> tuple[State, Any]:
        state = State.fresh(work, memory=ClientStates(ram=ram))
        return state, rounds(work, fedra.runners.RUNNERS["sequential"](work), Plan(4, CohortRule(0.7)), state)

    alone = [training(work, 100) for work in jobs]
    for _, whole in alone:
        list(whole)
    beside = [training(work, 0) for work in jobs]
    for _ in zip(*(turns for _, turns in beside), strict=True):
        pass
    for (state, _), (wanted, _) in zip(beside, alone, strict=True):
        assert toy.same_bits(state.server.weights.params, wanted.server.weights.params)
        state.memory.close()
    assert not toy.same_bits(alone[0][0].server.weights.params, alone[1][0].server.weights.params)


def test_own_models_keep_their_memories_on_the_disk_too() -> None:
    """`simulate` takes the same table, and a personalizer reads client by client."""
    own = [(one.inputs, one.targets) for one in toy.clients().examples]

    def simulated(ram: float) -> fedra.RunResult:
        algorithm = moon().plus(Sharing(private=("head.",)), FineTune(epochs=1))
        return fedra.simulate(
            algorithm, toy.mlp(), own, own[0], rounds=3, batch=4, runner="sequential", memory={"ram": ram}
        )

    found = [simulated(ram) for ram in (2048, 0)]
    assert [_timeless(line) for line in found[0].metrics] == [_timeless(line) for line in found[1].metrics]
    assert "personalized_accuracy" in found[0].summary
    assert _timeless(found[0].summary) == _timeless(found[1].summary)


def _timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "seconds"}


class PowerCut(BaseException):
    """Not to be caught by anybody."""


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["replace", "unlink"])
def test_a_stop_at_any_file_operation_while_memories_spill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Files of rounds after the checkpoint lie beside its own: a resumed run must not take them for its own."""
    every_other = Checkpoint.save

    def save(self: Checkpoint, state: State, record: str | None = None) -> None:
        if state.round % 2 == 0 or state.round == 5:
            every_other(self, state, record)

    table = config(memory={"ram": 0})
    fedra.run(table, out=tmp_path / "whole")
    whole = tiny.record(tmp_path / "whole")
    monkeypatch.setattr(ClientStates, "_make_room", _eagerly(ClientStates._make_room))
    monkeypatch.setattr(Checkpoint, "save", save)
    real, calls, stops, ahead = getattr(os, operation), 0, 0, 0

    def cut(*words: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == last:
            raise PowerCut
        real(*words, **named)

    monkeypatch.setattr(os, operation, cut)
    for last in range(1, 200):
        calls, folder = 0, tmp_path / str(last)
        try:
            experiment.run(table, out=folder)
        except PowerCut:
            stops, calls = stops + 1, 10**6
            if (folder / "config.toml").exists() and not (folder / "summary.json").exists():
                ahead += _is_ahead(folder / "checkpoint")
                experiment.resume(folder)
                assert tiny.record(folder) == whole, last
                assert _named(folder / "checkpoint") == _present(folder / "checkpoint"), "nothing is left over"
            shutil.rmtree(folder)
        else:
            break
    assert stops >= 8
    assert ahead or operation == "unlink"


def _named(checkpoint: Path) -> set[str]:
    return {f"{int(client):07d}-{file[0]:06d}" for client, file in manifest_of(checkpoint)["clients"].items()}


def _present(checkpoint: Path) -> set[str]:
    return {path.stem for path in checkpoint.glob("clients/*/*.safetensors")}


def _is_ahead(checkpoint: Path) -> bool:
    return any(int(name[-6:]) > manifest_of(checkpoint)["round"] for name in _present(checkpoint))


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_method_trains_from_the_disk_as_from_ram(name: str, tmp_path: Path) -> None:
    """What a method remembers must survive a file: types, orders and empty branches."""
    work = toy.job(ENTRIES[name].recipe(), toy.conv(torch.float32))
    runner = fedra.runners.RUNNERS["sequential"](work)
    history = toy.start(work)
    history.round(runner, work, 0, (0, 1, 2))
    store = ClientStates(ClientFiles(tmp_path), ram=0)
    store.put(1, {client: store.pack(one) for client, one in history.memory.items() if one})
    store.expect(())
    settle(store)
    for client in store:
        assert toy.same_bits(flatten(store.get(client)), flatten(history.memory[client]))
    store.close()
    runner.close()
