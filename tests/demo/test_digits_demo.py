"""The digits part of `fedra demo` with one round and a few methods, and the command itself."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import tiny
from fedra import demo
from fedra.demo.digits_demo import METHODS, SETTING, compare_methods, summarize_findings
from fedra.reports.sweep_table import Cell, Point

QUICK = {**SETTING, "rounds": 1}
DIVERGING = {"name": "fedavgm", "lr": 1e28}


def cells_of(accuracies: dict[str, tuple[float, ...]], **endings: tuple[str, ...]) -> list[tuple[Point, Cell]]:
    return [
        (Point((("algorithm", {"name": name}),), ()), Cell(values, endings.get(name, ())))
        for name, values in accuracies.items()
    ]


@pytest.mark.usefixtures("without_curves")
def test_every_method_has_a_run_for_every_seed(tmp_path: Path) -> None:
    printed = []
    for _ in range(2):  # a second demonstration takes the place of the first
        console = Console(file=io.StringIO(), width=200)
        cells = compare_methods(tmp_path / "digits", console, setting=QUICK, methods=METHODS[:2], seeds=2)
        printed.append(console.file.getvalue())  # type: ignore[attr-defined]
        assert [len(cell.accuracies) for _, cell in cells] == [2, 2]
        for point, cell in cells:
            row = next(line for line in printed[-1].splitlines() if line.startswith(f"│ {point.label} "))
            assert f"{cell.mean:.2f}({cell.deviation:.2f})" in row
            for (_, _, folder), accuracy in zip(point.runs, cell.accuracies, strict=True):
                assert 100 * json.loads((folder / "summary.json").read_text())["final_accuracy"] == accuracy
    rows = [[line for line in text.splitlines() if line.startswith("│ fed")] for text in printed]
    assert rows[0] == rows[1]
    for name in ("curves.svg", "sweep.svg", "table.md"):
        assert (tmp_path / "digits" / name).is_file(), name
    assert "fedra compare" in printed[0]


@pytest.mark.usefixtures("without_curves")
def test_a_method_that_diverges_does_not_stop_the_others(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    methods = ({"name": "fedavg"}, DIVERGING, {"name": "fedntd"})
    cells = compare_methods(tmp_path / "digits", console, setting={**QUICK, "rounds": 2}, methods=methods, seeds=1)
    assert [cell.failed for _, cell in cells] == [0, 1, 0]
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    row = next(line for line in printed.splitlines() if line.startswith("│ fedavgm"))
    assert "diverged in round" in row
    assert any(line.startswith("│ fedntd") for line in printed.splitlines())


def test_findings_tell_what_holds_in_every_seed_and_what_does_not() -> None:
    lines = summarize_findings(
        cells_of(
            {
                "fedavg": (70.0, 80.0),
                "scaffold": (90.0, 91.0),
                "fedprox": (75.0, 78.0),
                "worse": (60.0, 61.0),
                "same": (70.0, 80.0),
                "lost": (10.0, 81.0),
            },
            lost=("diverged in round 3",),
        )
    )
    assert lines == [
        "scaffold is 15.5 points above fedavg on average, and above it in every seed.",
        "worse is 14.5 points below fedavg on average, and below it in every seed.",
        "lost: 1 of 2 diverged in round 3; the other runs finished.",
        "No consistent difference from fedavg across the seeds: fedprox, same.",
    ]


def test_one_seed_ranks_no_method() -> None:
    cells = cells_of({"fedavg": (70.0,), "scaffold": (90.0,), "lost": (10.0,)}, lost=("diverged in round 3",))
    assert summarize_findings(cells) == [
        "lost: diverged in round 3; the other runs finished.",
        "One seed does not show which method is better.",
    ]


@pytest.mark.parametrize(("part", "shown"), [("digits", ["digits"]), ("faces", ["faces"]), (None, ["digits", "faces"])])
@pytest.mark.parametrize("ending", ["", "diverged in round 2"])
def test_one_part_alone_can_be_shown_and_the_exit_code_tells_of_failed_runs(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    part: str | None,
    shown: list[str],
    ending: str,
) -> None:
    done: list[str] = []
    cells = cells_of({"fedavg": (70.0,)}, fedavg=(ending,) if ending else ())
    monkeypatch.setattr(demo, "compare_methods", lambda out, console: done.append(out.name) or cells)
    monkeypatch.setattr(demo, "recognize_faces", lambda out, console: done.append(out.name))
    code = tiny.call(capsys, "demo", "--out", tmp_path, *([] if part is None else ["--part", part]))[0]
    assert done == shown
    assert code == (3 if ending and "digits" in shown else 0)


@pytest.mark.parametrize(("part", "ran"), [("digits", ["digits"]), ("faces", ["faces"]), ("all", ["digits", "faces"])])
def test_quick_runs_the_quick_parts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str, ran: list[str]
) -> None:
    done: list[str] = []
    monkeypatch.setattr(demo, "compare_methods", lambda out, console: pytest.fail("the full demo ran"))
    monkeypatch.setattr(demo, "recognize_faces", lambda out, console: pytest.fail("the full demo ran"))
    monkeypatch.setattr(demo, "compare_methods_quickly", lambda out, console: done.append(out.name) or [])
    monkeypatch.setattr(demo, "recognize_faces_quickly", lambda out, console: done.append(out.name))
    assert tiny.call(capsys, "demo", "--quick", "--part", part, "--out", tmp_path)[0] == 0
    assert done == ran


@pytest.mark.slow
def test_the_recipe_is_stable(tmp_path: Path) -> None:
    cells = compare_methods(tmp_path / "digits", Console(file=io.StringIO()))
    found = {point.label: cell for point, cell in cells}
    assert not any(cell.failed for cell in found.values())
    assert min(found["scaffold"].accuracies) > max(found["fedavg"].accuracies)
