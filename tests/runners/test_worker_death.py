"""Workers that die are reported by what ended them, and a script without its guard by that."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedra
import tiny
import toy
from fedra.algorithms import fedavg
from fedra.runners.processes import ProcessRunner
from fedra.runners.worker_death import NO_GUARD, describe_death

SCRIPT = """
import fedra
print("begun", flush=True)
table = {"rounds": 1, "model": {"name": "logistic"}, "partition": {"clients": 2},
         "runner": {"name": "processes", "workers": 2, "start_method": "spawn"}}
fedra.run(table, out="run")
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (-signal.SIGKILL, "by SIGKILL, perhaps for lack of memory: use fewer workers"),
        (-signal.SIGILL, "by SIGILL, because torch used an instruction that this processor does not have"),
        (-signal.SIGSEGV, "by SIGSEGV, which is a bug"),
        (-signal.SIGTERM, "by SIGTERM, which another process sent"),
        (-99, "by signal 99"),
        (3, "with exit code 3"),
        (None, "for an unknown reason"),
    ],
)
def test_deaths_by_exit_code(code: int | None, told: str) -> None:
    assert describe_death(code).startswith(told)


def test_a_worker_ends_at_once_where_it_would_run_its_parents_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(SystemExit) as stopped:
        ProcessRunner(toy.job(fedavg()), 1, 1, "spawn")
    assert stopped.value.code == NO_GUARD
    with pytest.raises(SystemExit):
        fedra.run(tiny.table(rounds=1))


@pytest.mark.slow
def test_a_script_without_its_guard_is_named(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("fedra.errors.ConfigError: a script that uses worker processes must call fedra below")
    assert done.stderr.count("Traceback") == 1, done.stderr  # the parent's alone
