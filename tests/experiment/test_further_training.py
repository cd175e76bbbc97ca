"""A finished run is trained further, and an interrupted one is evaluated and exported."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import fedra
import tiny
from fedra.errors import ConfigError, RunError
from fedra.experiment import rounds as training
from fedra.experiment import run as experiment
from fedra.experiment.execution import Interrupted
from tiny import call, mistake


@pytest.mark.parametrize("local", [{}, {"schedule": {"name": "exponential", "decay": 0.9}}])
def test_a_finished_run_is_trained_further_to_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], local: dict[str, Any]
) -> None:
    table = tiny.table(algorithm={"name": "scaffold", "plus": ["server-adam"]}, local=local)
    fedra.run({**table, "rounds": 5}, out=tmp_path / "whole")
    fedra.run({**table, "rounds": 2}, out=tmp_path / "run")
    code, shown, told = call(capsys, "run", "--resume", tmp_path / "run", "rounds=5")
    assert code == 0, told
    assert "after 5 rounds" in shown
    assert tiny.record(tmp_path / "run") == tiny.record(tmp_path / "whole")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 5


def test_what_cannot_be_trained_further(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    fedra.run(tiny.table(local={"schedule": "cosine"}), out=run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "must be more than the 3" in mistake(capsys, "run", "--resume", run, "rounds=3")
    assert "must not depend on the number of rounds" in mistake(capsys, "run", "--resume", run, "rounds=9")
    assert "no override but rounds=NUMBER, got 'seed=1'" in mistake(capsys, "run", "--resume", run, "seed=1")
    assert "got 'rounds=many'" in mistake(capsys, "run", "--resume", run, "rounds=many")
    assert "is finished" in mistake(capsys, "run", "--resume", run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    with pytest.raises(ConfigError, match="at most 1000000"):
        experiment.resume(run, rounds=10**7)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"status": "failed", "ending": "diverged in round 3"}))
    with pytest.raises(RunError, match="diverged in round 3, so it cannot be trained further"):
        experiment.resume(run, rounds=9)


@pytest.mark.parametrize("name", ["metrics.jsonl", "clients.jsonl"])
def test_a_damaged_record_is_refused_while_the_run_is_still_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    fedra.run(tiny.table(), out=tmp_path / "run")
    (tmp_path / "run" / name).write_text("{}\n")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert f"{name}' is damaged in line 1" in mistake(capsys, "run", "--resume", tmp_path / "run", "rounds=9", code=1)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that a signal stopped in its third round."""
    real, calls = training.rejection_reasons, 0

    def reasons(*words: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*words)

    monkeypatch.setattr(training, "rejection_reasons", reasons)
    with pytest.raises(Interrupted):
        fedra.run(tiny.table(rounds=4), out=tmp_path / "run")
    monkeypatch.undo()
    return tmp_path / "run"


def test_an_interrupted_run_is_evaluated_and_then_finished(
    interrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = len(tiny.metrics(interrupted))
    assert 0 < done < 4
    assert not (interrupted / "summary.json").exists()
    about = json.loads((interrupted / "interim.json").read_text())
    assert (about["status"], about["rounds"]) == ("interrupted", done)
    code, shown, told = call(capsys, "eval", interrupted)
    assert code == 0, told
    assert "accuracy" in shown
    experiment.resume(interrupted)
    assert not (interrupted / "interim.json").exists()
    fedra.run(tiny.table(rounds=4), out=tmp_path / "whole")
    assert tiny.record(interrupted) == tiny.record(tmp_path / "whole")


def test_an_interrupted_run_is_exported(interrupted: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    found = fedra.export(interrupted, tmp_path / "model.onnx")
    assert f"{len(tiny.metrics(interrupted))}, interrupted" in found.card.read_text()


def test_the_cost_of_a_sweep_is_known_before_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_text("")
    out = tmp_path / "sweep"
    words = ["sweep", str(tmp_path / "c.toml"), *tiny.WORDS, "local.lr=0.1,0.2", "--seeds", "2", "--out", str(out)]
    code, shown, told = call(capsys, *words, "--dry-run")
    assert code == 0, told
    assert shown.count(": 3 rounds") == 4
    assert "4 runs; estimated: " in shown
    assert not out.exists()
