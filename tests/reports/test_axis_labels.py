"""Plots name the split that the rounds were evaluated on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import fedra
import tiny
from fedra.experiment.sweep import sweep
from fedra.reports import comparison
from fedra.reports.comparison import draw_curves
from fedra.reports.sweep_metric import SweepMetric

VALIDATED = {"validation": 0.3}
METRICS: list[dict[str, Any]] = [{"round": 1, "accuracy": 0.2, "train_loss": 1.0}]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """The saved figures by folder and file name."""
    saved: dict[str, Figure] = {}
    monkeypatch.setattr(
        comparison, "save_figure", lambda figure, path: saved.update({f"{path.parent.name}/{path.name}": figure})
    )
    return saved


def legend(figure: Figure) -> list[str]:
    found = figure.axes[0].get_legend()
    return [] if found is None else [text.get_text() for text in found.get_texts()]


@pytest.mark.parametrize(("section", "split"), [({}, "test"), (VALIDATED, "validation")])
def test_curves_of_a_run(tmp_path: Path, figures: dict[str, Figure], section: dict[str, Any], split: str) -> None:
    fedra.run(tiny.table(rounds=1, evaluation=section), out=tmp_path / "run")
    assert figures["run/curves.svg"].axes[0].get_ylabel() == f"{split} accuracy (%)"
    fedra.compare([tmp_path / "run"], out=tmp_path / "run" / "compared.svg")
    assert figures["run/compared.svg"].axes[0].get_ylabel() == f"{split} accuracy (%)"


def test_runs_on_different_splits_are_told_apart_in_the_legend(figures: dict[str, Figure]) -> None:
    draw_curves({"a": METRICS, "b": METRICS}, Path("some/both.svg"), validated=["b"])
    assert figures["some/both.svg"].axes[0].get_ylabel() == "accuracy (%)"
    assert legend(figures["some/both.svg"]) == ["a (test)", "b (validation)"]
    draw_curves({"a": METRICS, "b": METRICS}, Path("some/both.svg"), validated=["a", "b"])
    assert figures["some/both.svg"].axes[0].get_ylabel() == "validation accuracy (%)"
    assert legend(figures["some/both.svg"]) == ["a", "b"]


def test_plots_of_a_sweep(tmp_path: Path, figures: dict[str, Figure]) -> None:
    sweep(tiny.table(rounds=1, evaluation=VALIDATED), {"local.lr": [0.1, 0.5]}, 1, tmp_path / "swept")
    axes = figures["swept/sweep.svg"].axes[0]
    assert axes.get_xlabel() == "validation accuracy (%)"
    points = axes.containers[0].lines[0].get_xdata()
    shown = axes.get_xlim()
    assert shown[1] - shown[0] == pytest.approx(1.3 * (max(points) - min(points)))  # not from zero
    assert [text.get_text() for text in axes.texts] == [f"{point:.2f}" for point in points]
    assert figures["swept/curves.svg"].axes[0].get_ylabel() == "validation accuracy (%)"


def test_the_axis_of_a_sweep_names_its_metric() -> None:
    labels = [SweepMetric().axis_label(split) for split in ("test", "validation", "")]
    assert labels == ["test accuracy (%)", "validation accuracy (%)", "accuracy (%)"]
    assert SweepMetric("final_auroc").axis_label("test") == "final_auroc (%)"
    assert SweepMetric("final_log_loss").axis_label("test") == "final_log_loss"
