"""A sweep compares any figure of the summary, in its own direction; with validation, that of validation examples."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
import tomli_w
from rich.console import Console

import tiny
from fedra.experiment.sweep import sweep
from fedra.reports.sweep_metric import SweepMetric
from fedra.reports.sweep_table import Cell, Point

pytestmark = pytest.mark.usefixtures("without_curves")


def run_sweep(metric: str, evaluation: dict[str, object]) -> tuple[str, list[float]]:
    table = tiny.table(rounds=2, evaluation=evaluation) | {"sweep": {"metric": metric, "local": {"lr": [1e-6, 0.5]}}}
    Path("c.toml").write_text(tomli_w.dumps(table))
    shown = io.StringIO()
    cells = sweep("c.toml", (), None, Path("out"), Console(file=shown, width=200))
    return shown.getvalue(), [cell.mean for _, cell in cells]


def test_a_loss_is_compared_as_it_is_and_the_smallest_is_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told, means = run_sweep("final_log_loss", {"metrics": ["log-loss"], "validation": 0.3})
    first, second = (json.loads((path / "summary.json").read_text()) for path in sorted(Path("out").glob("lr-*")))
    found = {round(summary["final_log_loss"], 9) for summary in (first, second)}
    assert {round(mean, 9) for mean in means} == found
    assert all(summary["test_log_loss"] != summary["final_log_loss"] for summary in (first, second))
    assert "best by final_log_loss: local.lr = 0.5" in told
    assert " final_log_loss ┃" in told


def test_an_auroc_is_compared_in_percent_and_the_largest_is_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told, means = run_sweep("best_auroc", {"best": "auroc"})
    assert "best by best_auroc: local.lr = 0.5" in told
    assert " best_auroc % ┃" in told
    assert means[1] > means[0] > 1


def test_directions_and_chance_levels() -> None:
    point = Point((("lr", 1),), ())
    cells = [(point, Cell((3.0,))), (Point((("lr", 2),), ()), Cell((5.0,)))]
    for key, best, chance in (
        ("final_accuracy", 2, 25.0),
        ("test_auroc", 2, 50.0),
        ("final_loss", 1, math.log(4)),
        ("best_log_loss", 1, math.log(4)),
        ("personal_eer", 1, 25.0),
        ("final_mcc", 2, 0.0),
    ):
        metric = SweepMetric(key)
        assert f"lr = {best} " in (metric.best(cells) or "")
        assert metric.chance({"chance_accuracy": 0.25}) == pytest.approx(chance)
    assert SweepMetric().best(cells[:1]) is None
