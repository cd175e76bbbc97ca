"""A short kill campaign, and what it would notice. `make chaos` runs a long one, of a federation too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

if not hasattr(os, "fork") or not Path("/proc").is_dir():
    pytest.skip("a kill campaign needs fork and /proc", allow_module_level=True)

from chaos_compare import differences, read_folder
from chaos_kill import FAILED, Kill, run_killed

CAMPAIGN = Path(__file__).parent / "chaos_campaign.py"


@pytest.mark.slow
def test_killed_commands_are_repeated_to_the_same_bits() -> None:
    words = [sys.executable, str(CAMPAIGN), "run", "extend", "align", "enroll", "export", "--kills", "15"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failures" in done.stdout.splitlines()[-1]


def test_a_process_is_killed_before_the_change_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()

    def act() -> None:
        for number in range(5):
            (tmp_path / "made" / str(number)).write_text("")

    assert run_killed(act, tmp_path, Kill()).changes == 5
    for path in (tmp_path / "made").iterdir():
        path.unlink()
    ending = run_killed(act, tmp_path, Kill(change=4))
    assert ending.killed
    assert sorted(os.listdir(tmp_path / "made")) == ["0", "1", "2"]


def test_a_failure_is_reported_and_so_is_a_process_that_outlives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("broken")

    assert "ValueError: broken" in run_killed(fail, tmp_path, Kill()).report
    monkeypatch.setattr("chaos_kill._wait_for_session.__defaults__", (0.2,))

    def leave() -> None:
        subprocess.Popen(["sleep", "60"])
        (tmp_path / "started").write_text("")

    ending = run_killed(leave, tmp_path, Kill())
    assert ending.code == FAILED
    assert "outlived" in ending.report


def test_files_are_compared_but_for_what_differs_without_kills(tmp_path: Path) -> None:
    first = {"a.json": b'{"seconds": 1.5, "accuracy": 0.5}', "b": b"bytes", ".fedra": b"a.json\nb\n"}
    second = {**first, "a.json": b'{"seconds": 2.5, "accuracy": 0.5}'}
    same = {**first, "a.json": b'{"seconds": 9.0, "accuracy": 0.5}', ".fedra": b"b\na.json\n"}
    assert differences(same, first, second) == []
    assert differences(same, first, first) == []  # both undisturbed ones took as long, by chance
    assert "a.json differs" in differences({**first, "a.json": b"damage"}, first, first)[0]
    assert "b differs" in differences({**first, "b": b"damage"}, first, second)[0]
    worse = {**same, "a.json": b'{"seconds": 9.0, "accuracy": 0.4}'}
    assert "a.json differs" in differences(worse, first, second)[0]
    assert differences({**same, "b.tmp": b""}, first, second) == ["b.tmp is left over"]
    assert "b is missing" in differences({"a.json": same["a.json"], ".fedra": b""}, first, second)
    (tmp_path / "empty").mkdir()
    assert read_folder(tmp_path) == {"empty": b"a folder"}
