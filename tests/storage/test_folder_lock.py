"""A run has its folder to itself, until it ends or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fedra
import tiny
from fedra.config.reading import read
from fedra.errors import ConfigError, RunError
from fedra.experiment import run as experiment
from fedra.storage.run_folder import RunFolder
from tiny import mistake

TESTS = Path(__file__).parent.parent
LONG = "rounds=100000"
pytestmark = pytest.mark.usefixtures("without_curves")


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are looked up in /proc")
def test_a_folder_in_use_is_refused_until_its_run_is_killed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A worker that hangs outlives the killed run here, and does not keep the folder."""
    (tmp_path / "c.toml").write_text("")
    out = tmp_path / "out"
    words = ["run", str(tmp_path / "c.toml"), *tiny.WORDS, LONG, "runner={name='processes', workers=2}"]
    words += ["--out", str(out)]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-m", "fedra.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    workers: list[int] = []
    try:
        until(lambda: (out / "metrics.jsonl").exists() and len(tiny.metrics(out)) > 2)
        for refused in (["run", "--resume", out], [*words, "--force"]):
            told = mistake(capsys, *refused, code=1)
            assert f"'{out}' is in use by another process: " in told
        done = len(tiny.metrics(out))
        until(lambda: len(tiny.metrics(out)) > done)
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        workers = [int(number) for number in listed.split()]
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        process.kill()
        process.wait()
        file = out / "config.toml"
        file.write_text(file.read_text().replace("rounds = 100000", f"rounds = {len(tiny.metrics(out)) + 2}"))
        experiment.resume(out)
    finally:
        process.kill()
        process.wait()
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
    assert len(workers) == 2
    assert not (out / ".lock").exists()
    assert (out / "summary.json").exists()


def test_a_folder_is_free_after_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must contain a run"):
        experiment.resume(tmp_path)
    assert not list(tmp_path.iterdir())
    fedra.run(tiny.table(rounds=1), out=tmp_path)
    with pytest.raises(ConfigError, match="nothing is left to resume"):
        experiment.resume(tmp_path)
    assert not (tmp_path / ".lock").exists()


def test_of_two_that_begin_at_once_one_is_refused(tmp_path: Path) -> None:
    config = read(tiny.table())
    with RunFolder(tmp_path).create(config, force=False), pytest.raises(RunError, match="is in use"):
        fedra.run(tiny.table(), out=tmp_path, force=True)
    with pytest.raises(ConfigError, match="was started"), RunFolder(tmp_path).create(config, force=False):
        pass
