"""What clients remember: the same bits wherever it lies, and no more of it in RAM than is allowed."""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import fedra
import tiny
import toy
from fedra.algorithms import ENTRIES, moon
from fedra.core.part import Sharing
from fedra.core.tree import Tree, flatten
from fedra.errors import RunFailed
from fedra.experiment import run as experiment
from fedra.experiment.checkpoint import Checkpoint
from fedra.experiment.cohort import CohortRule
from fedra.experiment.memory import ClientFiles, Damaged, Memories, files, pack
from fedra.experiment.memory.packing import decode, encode
from fedra.experiment.plan import Plan, State
from fedra.experiment.training import rounds
from fedra.parts.personalise import FineTune
from tiny import call, mistake

pytestmark = pytest.mark.usefixtures("without_curves")
SIZE = 1024
MB = SIZE / 2**20
"""One client's memory, in the unit of `ram`."""


def config(**sections: Any) -> dict[str, Any]:
    return tiny.table(**{"rounds": 5, "algorithm": {"name": "moon"}, "cohort": {"fraction": 0.5}, **sections})


def memory(value: float) -> Tree:
    return {"part": {"w": torch.full((SIZE // 4,), float(value))}}


def value_of(tree: Tree) -> float:
    return float(tree["part"]["w"][0]) if tree else 0.0


def filled(tmp_path: Path, clients: int, ram: float) -> Memories:
    """A store in which client k remembers k + 1 after round k + 1, with room made in each round."""
    store = Memories(ClientFiles(tmp_path), ram * MB)
    for client in range(clients):
        store.put(client + 1, {client: store.pack(memory(client + 1))})
        store.expect(())
    return store


def settle(store: Memories) -> None:
    """Wait for both threads; the writing one may let the reading one go on."""
    store._writer.wait()
    store._reader.wait()


@pytest.mark.parametrize("ram", [0.0, 0.5, 1.0, 3.0, 100.0])
def test_what_is_put_is_got_whatever_the_cap(tmp_path: Path, ram: float) -> None:
    store = filled(tmp_path, 8, ram)
    settle(store)
    store.expect(())
    settle(store)
    assert store.resident <= ram * SIZE
    assert [value_of(store.get(client)) for client in range(9)] == [1, 2, 3, 4, 5, 6, 7, 8, 0]
    assert list(store) == list(range(8))
    assert len(list(tmp_path.rglob("*.safetensors"))) == max(8 - int(ram), 0)
    store.close()


def test_the_least_recently_used_leave_first(tmp_path: Path) -> None:
    store = filled(tmp_path, 3, 3.0)
    store.get(0)
    store.put(9, {5: pack(memory(9))})
    store.expect(())
    settle(store)
    assert [path.name[:7] for path in tmp_path.rglob("*.safetensors")] == ["0000001"]


def test_the_expected_are_read_ahead_and_leave_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, 8, 4.0)
    settle(store)
    store.expect([1, 0])
    settle(store)
    read = files.read_packed
    monkeypatch.setattr(files, "read_packed", lambda *_: pytest.fail("it was not read ahead"))
    assert (value_of(store.get(1)), value_of(store.get(0))) == (2, 1)
    monkeypatch.setattr(files, "read_packed", read)
    assert store.resident <= 4 * SIZE
    store.expect(range(8))
    settle(store)
    assert store.resident <= 4 * SIZE, "reading ahead keeps to the cap"
    assert [value_of(store.get(client)) for client in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]
    store.close()


def test_a_client_that_trains_while_its_old_file_is_read_keeps_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, 4, 2.0)
    settle(store)
    real, gate, begun = files.read_packed, threading.Event(), threading.Event()

    def slow(path: Path, digest: str) -> Any:
        begun.set()
        assert gate.wait(30)
        return real(path, digest)

    monkeypatch.setattr(files, "read_packed", slow)
    store.expect([0])
    assert begun.wait(30)
    store.put(9, {0: pack(memory(99))})
    gate.set()
    settle(store)
    assert value_of(store.get(0)) == 99
    store.close()


def test_without_a_folder_the_overflow_is_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = Memories(ram=0)
    for round in range(1, 4):
        store.put(round, {0: pack(memory(round)), 1: pack(memory(-round))})
        store.expect(())
        settle(store)
    assert (value_of(store.get(0)), value_of(store.get(1))) == (3, -3)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2, "older files go at once"
    store.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["finished", "failed"])
def test_the_temporary_folder_goes_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Memories, "_make_room", _eagerly(Memories._make_room))
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

    def eager(self: Memories) -> None:
        self._writer.wait()
        make_room(self)

    return eager


def test_precision_rounds_vectors_and_nothing_else() -> None:
    values = {"a": torch.tensor([1 / 3]), "b": {"n": torch.tensor(1 / 3), "k": torch.tensor([7])}}
    values["d"] = torch.tensor([1 / 3], dtype=torch.float64)
    for name, kind in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        kept = pack(values, name)  # type: ignore[arg-type]
        for found in (flatten(kept.tree()), flatten(decode(encode(kept)).tree())):
            assert list(found) == ["a", "b|n", "b|k", "d"]
            assert torch.equal(found["a"], values["a"].to(kind).float())
            assert torch.equal(found["d"], values["d"].to(kind).double())
            assert torch.equal(found["b|n"], values["b"]["n"])
            assert torch.equal(found["b|k"], values["b"]["k"])
    assert pack(values, "float16").nbytes == 2 + 4 + 8 + 2
    assert torch.equal(flatten(pack(values).tree())["d"], values["d"])


def test_a_number_beyond_float16_is_refused() -> None:
    with pytest.raises(RunFailed, match=r"'part\|w'\) is beyond 65504.*bfloat16"):
        pack(memory(1e5), "float16")
    assert value_of(pack(memory(1e5), "bfloat16").tree()) == pytest.approx(1e5, rel=0.01)


def test_a_view_does_not_keep_its_storage_and_a_tensor_may_come_twice() -> None:
    whole = torch.arange(100.0)
    kept = pack({"part": whole[3:5], "same": whole, "again": whole})
    assert kept.values["part"].untyped_storage().nbytes() == 8
    found = decode(encode(kept)).values
    assert torch.equal(found["same"], found["again"])


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
    _longer(tmp_path / "half")
    experiment.resume(tmp_path / "half")
    assert tiny.record(tmp_path / "half") == wanted
    workers = config(memory={"precision": precision, "ram": 0}, runner={"name": "processes", "workers": 2})
    fedra.run(workers, out=tmp_path / "processes")
    assert tiny.record(tmp_path / "processes") == wanted
    monkeypatch.setattr(Memories, "_go_on_reading", lambda self: None)
    fedra.run(half, out=tmp_path / "unread")
    assert tiny.record(tmp_path / "unread") == wanted


def test_precision_changes_the_result(tmp_path: Path) -> None:
    for precision in ("float32", "bfloat16"):
        fedra.run(config(memory={"precision": precision}), out=tmp_path / precision)
    assert tiny.record(tmp_path / "float32")["model"] != tiny.record(tmp_path / "bfloat16")["model"]


def _longer(folder: Path) -> None:
    """A finished run of two rounds becomes a stopped one of five."""
    (folder / "summary.json").unlink()
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 5"))


def test_two_runs_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rounds take turns, and neither finds the other's clients."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Memories, "_make_room", _eagerly(Memories._make_room))
    jobs = [toy.job(moon(), seed=seed) for seed in (1, 2)]

    def training(work: Any, ram: float) -> tuple[State, Any]:
        state = State.fresh(work, memory=Memories(ram=ram))
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
    """`simulate` takes the same table, and a personaliser reads client by client."""
    own = [(one.inputs, one.targets) for one in toy.clients().examples]

    def simulated(ram: float) -> fedra.RunResult:
        algorithm = moon().plus(Sharing(private=("head.",)), FineTune(epochs=1))
        return fedra.simulate(
            algorithm, toy.mlp(), own, own[0], rounds=3, batch=4, runner="sequential", memory={"ram": ram}
        )

    found = [simulated(ram) for ram in (2048, 0)]
    assert [_timeless(line) for line in found[0].metrics] == [_timeless(line) for line in found[1].metrics]
    assert "personalised_accuracy" in found[0].summary
    assert found[0].summary == found[1].summary


def _timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "seconds"}


class PowerCut(BaseException):
    """Not to be caught by anybody."""


@pytest.mark.parametrize("operation", ["replace", "unlink"])
def test_a_stop_at_any_file_operation_while_memories_spill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Files of rounds after the checkpoint lie beside its own: a resumed run must not take them for its own."""
    every_other = Checkpoint.save

    def save(self: Checkpoint, state: State) -> None:
        if state.round % 2 == 0 or state.round == 5:
            every_other(self, state)

    table = config(memory={"ram": 0})
    fedra.run(table, out=tmp_path / "whole")
    whole = tiny.record(tmp_path / "whole")
    monkeypatch.setattr(Memories, "_make_room", _eagerly(Memories._make_room))
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


def _manifest(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / "manifest.json"
    return json.loads(path.read_text()) if path.exists() else {"round": 0, "clients": {}}


def _named(checkpoint: Path) -> set[str]:
    return {f"{int(client):07d}-{file[0]:06d}" for client, file in _manifest(checkpoint)["clients"].items()}


def _present(checkpoint: Path) -> set[str]:
    return {path.stem for path in checkpoint.glob("clients/*/*.safetensors")}


def _is_ahead(checkpoint: Path) -> bool:
    return any(int(name[-6:]) > _manifest(checkpoint)["round"] for name in _present(checkpoint))


def _half(folder: Path, **sections: Any) -> list[Path]:
    """A run that stopped after two rounds, and its clients' files."""
    fedra.run({**config(**sections), "rounds": 2}, out=folder)
    _longer(folder)
    return sorted(folder.glob("checkpoint/clients/*/*.safetensors"))


def test_a_resume_reads_what_it_needs_when_it_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = _half(tmp_path)
    read: list[Path] = []
    real = files.read_packed
    monkeypatch.setattr(files, "read_packed", lambda path, digest: (read.append(path), real(path, digest))[1])
    state = Checkpoint(tmp_path / "checkpoint").load(_server(tmp_path))
    assert len(state.memory) == len(held) > 1
    assert read == []
    client = next(iter(state.memory))
    assert state.memory.get(client)
    assert read == [held[0]]


def _server(folder: Path) -> Any:
    from fedra.experiment.build import build
    from fedra.experiment.folder import RunFolder

    return State.fresh(build(RunFolder(folder).config()).job).server


@pytest.mark.parametrize("harm", ["cut", "flip", "remove", "other"])
def test_a_damaged_file_restarts_its_client_and_the_run_goes_on(tmp_path: Path, harm: str) -> None:
    """The same as if the checkpoint had never known the client, but for what is said about it."""
    victim = _half(tmp_path / "run", cohort={"fraction": 1.0})[0]
    client = int(victim.name[:7])
    shutil.copytree(tmp_path / "run", tmp_path / "without")
    manifest = _manifest(tmp_path / "without" / "checkpoint")
    del manifest["clients"][str(client)]
    (tmp_path / "without" / "checkpoint" / "manifest.json").write_text(json.dumps(manifest))
    experiment.resume(tmp_path / "without")
    _harm(victim, harm)
    shown = io.StringIO()
    experiment.resume(tmp_path / "run", console=Console(file=shown, width=300))
    found, wanted = tiny.record(tmp_path / "run"), tiny.record(tmp_path / "without")
    assert found["model"] == wanted["model"]
    noted = [line for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if "restarted" in line]
    assert [(line["round"], line["client"]) for line in noted] == [(3, client)]
    assert str(victim) in noted[0]["restarted"]
    assert [line.get("restarted") for line in found["metrics"]] == [None, None, 1, None, None]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["restarted"] == 1
    assert f"warning: client {client} starts again from the global model: the file '{victim}'" in shown.getvalue()
    assert "restarted" not in json.loads((tmp_path / "without" / "summary.json").read_text())


def _harm(victim: Path, harm: str) -> None:
    content = victim.read_bytes()
    if harm == "remove":
        victim.unlink()
    elif harm == "other":
        files.write_packed(victim, pack(memory(1.0)))
    else:
        victim.write_bytes(content[:-5] if harm == "cut" else content[:-1] + bytes([content[-1] ^ 1]))


def test_a_file_that_is_no_safetensors_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"no tensors")
    with pytest.raises(Damaged, match="is damaged"):
        files.read_packed(path, files._digest(b"no tensors"))


def test_the_doctor_verifies_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    held = _half(tmp_path)
    code, shown, _ = call(capsys, "doctor", tmp_path)
    assert code == 0
    assert f"all is whole in the checkpoint of '{tmp_path}' after round 2" in shown
    assert f"{len(held)} clients" in shown
    _harm(held[0], "flip")
    held[1].unlink()
    code, shown, told = call(capsys, "doctor", tmp_path)
    assert code == 1
    assert told.startswith("fedra: 2 damaged in the checkpoint of")
    assert told.count("\n") == 1
    assert f"client {int(held[0].name[:7])}: the file '{held[0]}' is damaged (its checksum differs)" in shown
    assert f"client {int(held[1].name[:7])}: the file '{held[1]}' cannot be read" in shown
    server = next(tmp_path.glob("checkpoint/server-*"))
    _harm(server, "cut")
    assert "the run cannot be resumed" in call(capsys, "doctor", tmp_path)[1]


def test_the_doctor_has_nothing_to_verify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "holds no run" in mistake(capsys, "doctor", tmp_path)
    fedra.run(config(), out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    code, shown, _ = call(capsys, "doctor", tmp_path / "run")
    assert (code, "has no checkpoint" in shown) == (0, True)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_method_trains_from_the_disk_as_from_ram(name: str, tmp_path: Path) -> None:
    """What a method remembers must survive a file: types, orders and empty branches."""
    work = toy.job(ENTRIES[name].recipe(), toy.conv(torch.float32))
    runner = fedra.runners.RUNNERS["sequential"](work)
    history = toy.start(work)
    history.round(runner, work, 0, (0, 1, 2))
    store = Memories(ClientFiles(tmp_path), ram=0)
    store.put(1, {client: store.pack(one) for client, one in history.memory.items() if one})
    store.expect(())
    settle(store)
    for client in store:
        assert toy.same_bits(flatten(store.get(client)), flatten(history.memory[client]))
    store.close()
    runner.close()
