"""A run that is killed, interrupted or fails while it saves goes on to the same bits."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedra
import tiny
from fedra.errors import RunError
from fedra.experiment import run as experiment
from fedra.experiment.execution import Interrupted
from fedra.experiment.interrupt import Interruption
from tiny import call, mistake

TESTS = Path(__file__).parent.parent
CONFIG = tiny.table(rounds=4, algorithm={"name": "moon", "plus": ["fedsam"]}, cohort={"fraction": 0.5})
pytestmark = pytest.mark.usefixtures("without_curves")
fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of the uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    fedra.run(CONFIG, out=folder)
    return tiny.record(folder)


@pytest.mark.slow
@fork
def test_killed_at_any_moment(tmp_path: Path) -> None:
    words = [sys.executable, str(TESTS / "experiment" / "killing.py"), str(tmp_path), "scaffold", "4"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment(), timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = re.search(r"kills (\d+)", done.stdout)
    assert kills
    assert int(kills[1]) >= 4
    for trial in range(4):
        assert tiny.record(tmp_path / f"trial-{trial}") == tiny.record(tmp_path / "whole"), trial
        left = [path.name for path in (tmp_path / f"trial-{trial}").rglob("*.tmp")]
        assert all(not name.startswith(("server", "0")) for name in left), "the checkpoint sweeps what it left"


class PowerCut(BaseException):
    """Not to be caught by anybody."""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the rename", "after the rename", "within the file"])
def test_a_stop_within_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any], moment: str
) -> None:
    """Every call of os.replace (or fsync) is the last one once; the run is resumed after each."""
    real = {"replace": os.replace, "fsync": os.fsync}
    name = "fsync" if moment == "within the file" else "replace"
    calls = 0

    def cut(*words: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == last:
            if moment == "after the rename":
                real[name](*words)
            appended = name == "fsync" and fcntl.fcntl(words[0], fcntl.F_GETFL) & os.O_APPEND
            if moment == "within the file" and not appended:  # older lines of a record are on the disk already
                os.ftruncate(words[0], 3)
            raise PowerCut
        real[name](*words)

    monkeypatch.setattr(os, name, cut)
    stops = 0
    for last in range(1, 200):
        calls = 0
        folder = tmp_path / str(last)
        try:
            experiment.run(CONFIG, out=folder)
        except PowerCut:
            stops += 1
            calls = 10**6
            if (folder / "config.toml").exists():
                if not (folder / "summary.json").exists():
                    experiment.resume(folder)
                assert tiny.record(folder) == whole, last
            shutil.rmtree(folder)
        else:
            break
    assert stops >= 15


def test_a_stop_between_the_lines_and_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any]
) -> None:
    from fedra.storage.checkpoint import Checkpoint

    real = Checkpoint.save

    def save(self: Checkpoint, state: Any, record: str | None = None) -> None:
        if state.round == 3:
            raise PowerCut
        real(self, state, record)

    monkeypatch.setattr(Checkpoint, "save", save)
    with pytest.raises(PowerCut):
        fedra.run(CONFIG, out=tmp_path)
    monkeypatch.undo()
    assert [line["round"] for line in tiny.metrics(tmp_path)] == [1, 2, 3]
    with (tmp_path / "clients.jsonl").open("a") as file:
        file.write('{"round": 4, "cli')  # a kill in the middle of a line
    experiment.resume(tmp_path)
    assert tiny.record(tmp_path) == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", range(4))
def test_an_interruption_anywhere_keeps_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any], number: signal.Signals, step: int
) -> None:
    """A signal while clients train, while the state moves on, while lines are written, while it is saved."""
    from fedra.experiment import rounds as training
    from fedra.storage.checkpoint import Checkpoint
    from fedra.storage.run_folder import RunFolder
    from fedra.storage.state import State

    places: list[tuple[Any, str]] = [
        (training, "rejection_reasons"), (State, "advance"), (RunFolder, "append"), (Checkpoint, "save"),
    ]  # fmt: skip
    owner, name = places[step]
    real, calls = getattr(owner, name), 0

    def signaled(*words: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), number)
        return real(*words)

    monkeypatch.setattr(owner, name, signaled)
    with pytest.raises(Interrupted, match=r"interrupted after round \d; continue with: fedra run --resume"):
        fedra.run(CONFIG, out=tmp_path)
    monkeypatch.undo()
    done = json.loads((tmp_path / "checkpoint" / "manifest.json").read_text())["round"]
    assert done == len(tiny.metrics(tmp_path)) >= 1
    experiment.resume(tmp_path)
    assert tiny.record(tmp_path) == whole


def test_an_ignored_signal_stays_ignored_and_handlers_come_back() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    with Interruption():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_ctrl_c_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")
    out = tmp_path / "out"
    words = [sys.executable, "-m", "fedra.cli", "run", str(tmp_path / "c.toml"), *tiny.WORDS, "rounds=100000"]
    words += ["checkpoint.seconds=1000", "runner={name='processes', workers=2}", "--out", str(out)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        _until(lambda: (out / "metrics.jsonl").exists() and len(tiny.metrics(out)) > 2)
        workers = _children(process.pid)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    found = re.fullmatch(rf"fedra: interrupted after round (\d+); continue with: fedra run --resume {out}\n", told)
    assert found, told
    assert int(found[1]) == len(tiny.metrics(out))
    assert json.loads((out / "checkpoint" / "manifest.json").read_text())["round"] == int(found[1])
    assert not (out / "summary.json").exists()
    _until(lambda: not any(map(_alive, workers)))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are looked up in /proc")
def test_no_worker_outlives_a_killed_run(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")
    out = tmp_path / "out"
    words = [sys.executable, "-m", "fedra.cli", "run", str(tmp_path / "c.toml"), *tiny.WORDS, "rounds=100000"]
    words += ["runner={name='processes', workers=3}", "--out", str(out)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    try:
        _until(lambda: (out / "metrics.jsonl").exists() and len(tiny.metrics(out)) > 2)
        workers = _children(process.pid)
    finally:
        process.kill()
        process.wait()
    assert len(workers) == 3
    _until(lambda: not any(map(_alive, workers)))


def _until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def _children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(number) for number in listed.read_text().split()] if listed.exists() else []


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_resuming_what_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "must contain a run" in mistake(capsys, "run", "--resume", tmp_path)
    fedra.run(CONFIG, out=tmp_path / "run")
    assert "is finished" in mistake(capsys, "run", "--resume", tmp_path / "run")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b'{"round": -1, "server": "x", "clients": {}}',
        b'{"round": 1, "server": 5, "clients": {}}',
        b'{"round": 1, "server": "x", "clients": []}',
        b'{"version": 1, "round": 1, "server": "x", "clients": {}}',
    ],
)
def test_a_damaged_manifest(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes) -> None:
    _half(tmp_path)
    (tmp_path / "checkpoint" / "manifest.json").write_bytes(content)
    assert re.search(r"manifest.json' is damaged \(.+\)", mistake(capsys, "run", "--resume", tmp_path, code=1))


@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_a_damaged_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path, harm: str) -> None:
    _half(tmp_path)
    victim = next((tmp_path / "checkpoint").glob("server-*.safetensors"))
    content = victim.read_bytes()
    if harm == "remove":
        victim.unlink()
    else:
        victim.write_bytes(content[:-5] if harm == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    told = mistake(capsys, "run", "--resume", tmp_path, code=1)
    assert str(victim) in told
    assert ("cannot be read" if harm == "remove" else "its checksum differs") in told


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    _half(tmp_path)
    file = tmp_path / "config.toml"
    file.write_text(re.sub(r"hidden = \[\s*8,\s*\]", "hidden = [9]", file.read_text()))
    with pytest.raises(RunError, match="must match the configuration"):
        experiment.resume(tmp_path)


def test_a_longer_run_goes_on_from_a_finished_checkpoint(tmp_path: Path, whole: dict[str, Any]) -> None:
    """The rounds of a half run may be raised in its file: nothing else of it depends on them."""
    fedra.run({**CONFIG, "rounds": 2}, out=tmp_path)
    (tmp_path / "summary.json").unlink()
    file = tmp_path / "config.toml"
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 4"))
    experiment.resume(tmp_path)
    assert tiny.record(tmp_path) == whole


def test_resume_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, whole: dict[str, Any]) -> None:
    _half(tmp_path)
    code, shown, _ = call(capsys, "run", "--resume", tmp_path)
    assert code == 0
    assert "after 4 rounds" in shown
    assert tiny.record(tmp_path) == whole


def _half(folder: Path) -> None:
    """A run of CONFIG that stopped after two rounds."""
    fedra.run({**CONFIG, "rounds": 2}, out=folder)
    (folder / "summary.json").unlink()
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 4"))
