"""The demonstration on digits, with one round and two methods."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedra.experiment import demo


@pytest.mark.usefixtures("without_curves")
def test_every_method_has_its_run_and_all_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SETTING", demo.SETTING | {"rounds": 1, "runner": {"name": "sequential"}})
    monkeypatch.setattr(demo, "METHODS", demo.METHODS[:2])
    printed = io.StringIO()
    for _ in range(2):  # a second demonstration takes the place of the first
        demo.demo(tmp_path, Console(file=printed, width=200))
    for name in ("demo-fedavg/summary.json", "demo-fedprox/summary.json", "comparison.svg", "comparison.png"):
        assert (tmp_path / name).is_file(), name
    first, second = printed.getvalue().split("curves in")[:2]
    rows = [[line.split("│")[1:3] for line in part.splitlines() if "│ fed" in line] for part in (first, second)]
    assert len(rows[0]) == 2
    assert rows[0] == rows[1]
