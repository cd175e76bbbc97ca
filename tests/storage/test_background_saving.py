"""Checkpoints are written beside the next round: nothing changes under the writer, and its errors are heard."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedra
import tiny
import toy
from fedra.algorithms import ENTRIES
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.core.tree import flatten
from fedra.experiment import run as experiment
from fedra.storage import checkpoint as saving
from fedra.storage.background import Background
from fedra.storage.checkpoint import Checkpoint
from fedra.storage.client_state import client_files as files
from fedra.storage.client_state import pack
from fedra.storage.state import State
from tiny import mistake

pytestmark = pytest.mark.usefixtures("without_curves")
MOON = tiny.table(rounds=4, algorithm={"name": "moon"})


def copied(history: toy.History) -> dict[str, torch.Tensor]:
    everything = {"weights": history.server.weights._asdict(), "server": history.server.memory}
    clients = {str(client): memory for client, memory in history.memory.items()}
    return flatten({**everything, "clients": clients})


@pytest.mark.parametrize("runner", ["sequential", "stacked"])
@pytest.mark.parametrize("name", ENTRIES)
def test_a_round_leaves_the_state_before_it_as_it_was(name: str, runner: str) -> None:
    """What a checkpoint is being made of is the state before the round: no tensor of it may change in place."""
    work = toy.job(ENTRIES[name].recipe(), toy.conv(torch.float32))
    engine = fedra.runners.RUNNERS[runner](work)
    history = toy.start(work)
    history.round(engine, work, 0, (0, 1, 2))
    live = copied(history)
    before = {path: value.clone() for path, value in live.items()}
    history.round(engine, work, 1, (0, 1, 2))
    engine.close()
    assert toy.same_bits(live, before)


def test_the_next_round_trains_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first manifest waits until the second round has been recorded: only a thread of its own can."""
    recorded = threading.Event()
    real, writers = saving.write_atomically, set()

    def slow(path: Path, data: bytes, **settings: Any) -> None:
        writers.add(threading.current_thread() is threading.main_thread())
        if path.name == "manifest.json":
            assert recorded.wait(30)
        real(path, data, **settings)

    def append(self: Any, name: str, lines: list[dict[str, Any]]) -> None:
        written(self, name, lines)
        if name == "metrics.jsonl" and lines[0]["round"] == 2:
            recorded.set()

    written = experiment.RunFolder.append
    monkeypatch.setattr(saving, "write_atomically", slow)
    monkeypatch.setattr(experiment.RunFolder, "append", append)
    fedra.run(MOON, out=tmp_path)
    assert recorded.is_set()
    assert False in writers
    assert json.loads((tmp_path / "checkpoint" / "manifest.json").read_text())["round"] == 4


def test_nothing_is_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    real = saving.write_atomically

    def written(path: Path, *rest: Any, **settings: Any) -> None:
        names.append(path.name)
        real(path, *rest, **settings)

    for module in (saving, files):
        monkeypatch.setattr(module, "write_atomically", written)
    fedra.run(MOON, out=tmp_path)
    assert names.count("manifest.json") == 4
    assert names.count("server-000004.safetensors") == 1
    assert all(names.count(name) == 1 for name in names if re.fullmatch(r"\d+-\d+\.safetensors", name))


@pytest.mark.parametrize("call", [1, 4, 10_000])
def test_a_full_disk_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """In the first file, in a later one, in the last of all; the run goes on from there when there is room."""
    (tmp_path / "c.toml").write_text("")
    real, calls = os.fsync, 0
    last = call

    def full(number: int) -> None:
        nonlocal calls
        calls += threading.current_thread() is not threading.main_thread()
        if calls == last:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", full)
    words = ["run", tmp_path / "c.toml", *tiny.WORDS, "algorithm.name=moon"]
    if call == 10_000:
        fedra.run(tiny.table(algorithm={"name": "moon"}), out=tmp_path / "count")
        calls, last = 0, calls
    told = mistake(capsys, *words, "--out", tmp_path / "out", code=1)
    assert told == "a file or the disk cannot be used: No space left on device"
    monkeypatch.undo()
    assert not (tmp_path / "out" / "summary.json").exists()
    monkeypatch.setattr(Curves, "on_run_end", Callback.on_run_end)
    experiment.resume(tmp_path / "out")
    fedra.run(tiny.table(algorithm={"name": "moon"}), out=tmp_path / "whole")
    assert tiny.record(tmp_path / "out") == tiny.record(tmp_path / "whole")


def test_work_comes_one_after_the_other_and_errors_come_out() -> None:
    background, done = Background(), []
    gate = threading.Event()

    def first() -> None:
        assert gate.wait(30)
        done.append(1)

    background.start(first)
    assert done == []
    gate.set()
    background.start(lambda: done.append(2))
    background.wait()
    assert done == [1, 2]
    works: list[Callable[[], None]] = [background.wait, lambda: background.start(lambda: None)]
    for again in works:
        background.start(_fails)
        with pytest.raises(KeyError, match="lost"):
            again()
        background.wait()
    background.start(_fails)
    background.join()
    with pytest.raises(KeyError, match="lost"):
        background.wait()


def _fails() -> None:
    raise KeyError("lost")


def test_what_is_saved_is_the_moment_of_saving(tmp_path: Path) -> None:
    """The state moves on while it is written; clients that trained meanwhile are saved by the next."""
    work = toy.job(ENTRIES["moon"].recipe())
    saved = Checkpoint(tmp_path)
    state = State.fresh(work, memory=saved.memories())
    state.advance(state.server, {0: pack({"model-contrast": {"params": {"w": torch.zeros(2)}}})})
    saved.save(state)
    state.advance(state.server, {1: pack({"model-contrast": {"params": {"w": torch.ones(2)}}})})
    saved.wait()
    assert set(Checkpoint(tmp_path).load(state.server).memory) == {0}
    assert set(state.memory.unsaved()) == {1}
    saved.save(state)
    saved.wait()
    found = Checkpoint(tmp_path).load(state.server)
    assert (found.round, set(found.memory)) == (2, {0, 1})
