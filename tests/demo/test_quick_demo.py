"""`fedra demo --quick`, run as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from fedra.demo.digits_demo import METHODS, SEEDS, SETTING
from fedra.demo.face_demo import Scale
from fedra.demo.quick_demo import NOTICE, QUICK_SCALE, QUICK_SEEDS, QUICK_SETTING


def test_the_quick_demo_runs_every_step_and_says_that_it_is_a_smoke_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDRA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDRA_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    code, shown, _ = tiny.call(capsys, "demo", "--quick", "--out", tmp_path / "demo")
    assert code == 0
    assert shown.count(NOTICE) == 2
    assert shown.index(NOTICE) < shown.index("fedavg")
    assert "not those of the full demo" in NOTICE
    assert "One seed does not show which method is better." in shown
    digits = [path.parent for path in (tmp_path / "demo" / "digits").glob("*/summary.json")]
    assert len(digits) == len(METHODS)
    faces = tmp_path / "demo" / "faces"
    for run in (*digits, faces / "run"):
        assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    for name in ("run/eval-unseen.json", "run/threshold.json", "staff.gallery", "face.onnx"):
        assert (faces / name).is_file(), name
    people = QUICK_SCALE.enrolled + QUICK_SCALE.unknown
    assert f"of {people} answers are correct" in shown


def test_the_quick_demo_differs_from_the_full_one_in_its_size_alone() -> None:
    assert {key for key in SETTING if SETTING[key] != QUICK_SETTING[key]} == {"rounds"}
    assert QUICK_SETTING["rounds"] < SETTING["rounds"]
    assert QUICK_SEEDS < SEEDS
    for name, count in vars(QUICK_SCALE).items():
        assert count < getattr(Scale(), name), name
