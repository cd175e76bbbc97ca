"""A resumed run notices other data, and tells what its own record lacks."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fedra
import tiny
from fedra.errors import ConfigError, RunError
from fedra.experiment import run as experiment
from fedra.experiment.data_digests import digest_data
from fedra.experiment.experiment import Experiment
from tiny import call, mistake


def _interrupt(folder: Path, rounds: int = 6) -> None:
    """Make a finished run look like one that was stopped after its last checkpoint and shall be longer."""
    (folder / "summary.json").unlink()
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("rounds = 3", f"rounds = {rounds}"))


def _npz(path: Path, change: str = "") -> None:
    draw = np.random.default_rng(5)
    x, y = draw.normal(size=(60, 6)).astype(np.float32), np.arange(60) % 3
    if change == "one more":
        x, y = np.concatenate([x, x[:1]]), np.concatenate([y, y[:1]])
    if change == "one less":
        x, y = x[:-1], y[:-1]
    if change == "two swapped":
        x[[0, 3]] = x[[3, 0]]
    if change == "a label":
        y[0] = 1
    test = x[:12] + (1.0 if change == "the test set" else 0.0)
    np.savez(path, x_train=x, y_train=y, x_test=test, y_test=np.arange(12) % 3)


CHANGES = {
    "one more": "the training examples",
    "one less": "the training examples",
    "two swapped": "the training examples",
    "a label": "the training examples",
    "the test set": "the test set",
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_data_are_refused_and_may_be_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    _npz(tmp_path / "own.npz")
    table = tiny.table(data={"name": "npz", "path": str(tmp_path / "own.npz")})
    fedra.run(table, out=tmp_path / "run")
    _interrupt(tmp_path / "run")
    before = tiny.record(tmp_path / "run")
    _npz(tmp_path / "own.npz", change)
    told = mistake(capsys, "run", "--resume", tmp_path / "run")
    assert CHANGES[change] in told
    assert "changed since" in told
    assert tiny.record(tmp_path / "run") == before
    assert call(capsys, "run", "--resume", tmp_path / "run", "--accept-data")[0] == 0
    assert len(tiny.metrics(tmp_path / "run")) == 6


def test_the_same_data_have_the_same_digests_and_no_digest_is_no_check(tmp_path: Path) -> None:
    _npz(tmp_path / "own.npz")
    table = tiny.table(data={"name": "npz", "path": str(tmp_path / "own.npz")})
    fedra.run(table, out=tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "data.json").read_text())["digests"]
    job = Experiment.from_config(table)._build(Experiment.from_config(table).config).job  # type: ignore[arg-type]
    assert digest_data(job) == kept  # type: ignore[arg-type]
    assert kept.keys() == {"training", "clients", "test"}
    _interrupt(tmp_path / "run")
    (tmp_path / "run" / "data.json").unlink()  # as older runs are
    assert experiment.resume(tmp_path / "run").summary["rounds"] == 6


def test_examples_of_ones_own_that_move_to_another_client_are_noticed(tmp_path: Path) -> None:
    inputs, targets = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3

    def run(order: list[int], **options: Any) -> fedra.RunResult:
        clients = [(inputs[order][part], targets[order][part]) for part in (slice(0, 20), slice(20, 40))]
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        torch.nn.init.constant_(net[0].bias, 0.0)
        own = fedra.Experiment(fedra.algorithms.fedavg(), net, clients, clients[0], rounds=3, runner="sequential")
        return own.run(out=tmp_path, **options)

    run(list(range(40)))
    (tmp_path / "summary.json").unlink()
    with pytest.raises(ConfigError, match="the training examples"):
        run([39, *range(1, 39), 0], resume=True)
    assert run(list(range(40)), resume=True).summary["rounds"] == 3


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half") / "run"
    fedra.run(tiny.table(), out=folder)
    _interrupt(folder)
    return folder


@pytest.mark.parametrize(
    ("keep", "missing"),
    [([0, 1, 2], []), ([0, 2], [2]), ([2], [1, 2]), ([], [1, 2, 3]), ([0, 0, 1, 1, 2, 2], []), ([0, 1], [3])],
)
def test_the_rounds_are_those_of_the_checkpoint(
    half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], keep: list[int], missing: list[int]
) -> None:
    shutil.copytree(half, tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[index] for index in keep))
    code, shown, told = call(capsys, "run", "--resume", tmp_path / "run")
    assert code == 0, told
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 6
    assert summary.get("rounds_without_record", []) == missing
    assert ("metrics.jsonl lacks" in " ".join(shown.split())) == bool(missing)
    assert [line["round"] for line in tiny.metrics(tmp_path / "run")] == [n for n in range(1, 7) if n not in missing]


def test_a_record_that_is_gone_or_doubled_is_repaired(half: Path, tmp_path: Path) -> None:
    shutil.copytree(half, tmp_path / "run")
    clients = tmp_path / "run" / "clients.jsonl"
    clients.write_text(clients.read_text() * 2)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    summary = experiment.resume(tmp_path / "run").summary
    assert (summary["rounds"], summary["rounds_without_record"]) == (6, [1, 2, 3])
    found = [(line["round"], line["client"]) for line in tiny.lines(clients)]
    assert len(found) == len(set(found)) == 24


def test_the_last_round_without_a_line_has_no_final_figures(half: Path, tmp_path: Path) -> None:
    shutil.copytree(half, tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("rounds = 6", "rounds = 3"))  # all rounds are done
    record = tmp_path / "run" / "metrics.jsonl"
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:2]))
    summary = experiment.resume(tmp_path / "run").summary
    assert (summary["rounds"], summary["rounds_without_record"], summary["final_accuracy"]) == (3, [3], None)


@pytest.mark.parametrize("key", ["bytes_down", "seconds"])
def test_a_line_without_a_number_is_told(half: Path, tmp_path: Path, key: str) -> None:
    shutil.copytree(half, tmp_path / "run")
    record = tmp_path / "run" / "metrics.jsonl"
    lines = tiny.metrics(tmp_path / "run")
    lines[1][key] = "many"
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RunError, match=rf"metrics.jsonl' is damaged in line 2 \({key} must be a number\)"):
        experiment.resume(tmp_path / "run")


def test_lines_are_on_the_disk_before_the_checkpoint_that_counts_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    from fedra.storage.checkpoint import Checkpoint

    events: list[str] = []
    real_sync, real_save = os.fsync, Checkpoint.save

    def sync(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}")
        events.append(os.path.basename(os.readlink(path)) if path.exists() else "metrics.jsonl")
        real_sync(number)

    def save(self: Checkpoint, state: Any, record: str | None = None) -> None:
        events.append("checkpoint")
        real_save(self, state, record)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Checkpoint, "save", save)
    fedra.run(tiny.table(rounds=2), out=tmp_path)
    for index, event in enumerate(events):
        if event == "checkpoint":
            assert "metrics.jsonl" in events[:index]
            events[: index + 1] = ["done"] * (index + 1)


def test_numbers_that_somebody_changed_are_told(half: Path, tmp_path: Path) -> None:
    shutil.copytree(half, tmp_path / "run")
    record = tmp_path / "run" / "metrics.jsonl"
    lines = tiny.metrics(tmp_path / "run")
    lines[1]["accuracy"] = 0.99
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = io.StringIO()
    experiment.resume(tmp_path / "run", console=Console(file=told, width=500))
    assert "metrics.jsonl is not as this run wrote it" in told.getvalue()


def test_a_record_as_it_was_written_is_not_mentioned(half: Path, tmp_path: Path) -> None:
    shutil.copytree(half, tmp_path / "run")
    told = io.StringIO()
    experiment.resume(tmp_path / "run", console=Console(file=told, width=500))
    assert "as this run wrote it" not in told.getvalue()


def test_what_a_killed_process_left_is_removed(half: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(half, run)
    left = [run / f"{name}.0123456789abcdef.tmp" for name in ("metrics.jsonl", "summary.json", "config.toml")]
    mine = [run / "notes.0123456789abcdef.tmp", run / "metrics.jsonl.tmp"]
    for path in (*left, *mine):
        path.write_text("half a file")
    with open(run / ".fedra", "a") as claims:
        claims.write("summary.json\n")
    experiment.resume(run)
    assert [path for path in left if path.exists()] == []
    assert all(path.exists() for path in mine)
    assert not (run / ".lock").exists()
