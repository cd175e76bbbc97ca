"""Plots of training dynamics and of a sweep's factors: their numbers are those of the runs' records."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedra
import tiny
from fedra.errors import ConfigError
from fedra.experiment.sweep import sweep
from fedra.reports.dynamics_plots import (
    class_table,
    draw_classes,
    draw_participation,
    draw_preservation,
    draw_updates,
    participation,
)
from fedra.reports.run_groups import group_runs
from fedra.reports.sweep_factors import draw_sweep_factors, read_sweep
from fedra.storage.run_folder import RunFolder

DIAGNOSTICS = {"classes": True, "preservation": True, "proximal": True}


def read(path: Path) -> list[dict[str, str]]:
    with open(path.with_suffix(".csv"), newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of FedAvg and one of FedProx, with half of the clients and some that drop out."""
    base = tmp_path_factory.mktemp("runs")
    settings: list[dict[str, Any]] = [
        {"seed": 0},
        {"seed": 1},
        {"seed": 0, "algorithm": {"name": "fedprox", "mu": 0.5}},
    ]
    for number, one in enumerate(settings):
        more = {"cohort": {"fraction": 0.75}, "faults": {"dropout": 0.3, "quorum": 0.3}, "diagnostics": DIAGNOSTICS}
        fedra.run(tiny.table(**one, **more), out=base / str(number))
    return [base / str(number) for number in range(len(settings))]


def test_preservation_averages_seeds(runs: list[Path], tmp_path: Path) -> None:
    groups = group_runs(runs)
    assert {name: len(members) for name, members in groups.items()} == {"fedavg": 2, "fedprox": 1}
    draw_preservation(groups, tmp_path / "p.svg")
    rows = read(tmp_path / "p.svg")
    metrics = [RunFolder(run).metrics() for run in runs]
    assert len(rows) == 6
    wanted = 50 * (metrics[0][1]["local_accuracy_mean"] + metrics[1][1]["local_accuracy_mean"])
    assert float(rows[1]["local"]) == pytest.approx(wanted)
    own = [line["in_local_accuracy"] for line in RunFolder(runs[2]).clients() if line["round"] == 1 and "steps" in line]
    assert float(rows[3]["in_local"]) == pytest.approx(100 * np.mean(own))


def test_classes_and_forgetting(runs: list[Path], tmp_path: Path) -> None:
    draw_classes(group_runs(runs), tmp_path / "c.png")
    rounds, table = class_table(RunFolder(runs[0]))
    assert (rounds, table.shape) == ([1, 2, 3], (3, 4))
    rows = read(tmp_path / "c.png")
    assert [float(row["accuracy"]) for row in rows[:4]] == pytest.approx(table[0].tolist())
    assert len(rows) == 2 * 3 * 4


def test_update_norms_leave_out_dropped_clients(runs: list[Path], tmp_path: Path) -> None:
    draw_updates(group_runs(runs[2:]), tmp_path / "u.svg")
    first = read(tmp_path / "u.svg")[0]
    lines = [line for line in RunFolder(runs[2]).clients() if line["round"] == 1 and not line.get("dropped")]
    norms = [line["update_norm"] for line in lines]
    assert float(first["mean"]) == pytest.approx(np.mean(norms))
    assert (float(first["smallest"]), float(first["largest"])) == pytest.approx((min(norms), max(norms)))


def test_participation_counts_used_and_dropped_uploads(runs: list[Path], tmp_path: Path) -> None:
    draw_participation(group_runs(runs), tmp_path / "q.svg")
    metrics = RunFolder(runs[0]).metrics()
    table = participation(RunFolder(runs[0]))
    assert table.shape == (3, 4)
    assert (table == 1).sum(axis=1).tolist() == [line["clients"] for line in metrics]
    rows = [row for row in read(tmp_path / "q.svg") if row["run"] == "fedavg"]
    assert [int(row["rounds_used"]) for row in rows] == (table == 1).sum(axis=0).tolist()


def test_participation_of_many_clients_is_sorted(tmp_path: Path) -> None:
    data = {"name": "synthetic", "examples": 400, "test_examples": 40, "classes": 4, "shape": [6]}
    table = tiny.table(rounds=2, data=data, partition={"name": "iid", "clients": 80}, cohort={"fraction": 0.1})
    fedra.run(table, out=tmp_path / "run")
    draw_participation(group_runs([tmp_path / "run"]), tmp_path / "many.svg")
    rows = read(tmp_path / "many.svg")
    assert len(rows) == 80
    assert sum(int(row["rounds_used"]) for row in rows) == 16


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "a"
    table = tiny.table(rounds=1, algorithm={"name": "fedsol", "rho": 0.0}, diagnostics={"proximal": True})
    sweep(table, {"algorithm.rho": [0.0, 1.0], "model.name": ["mlp", "logistic"]}, 2, folder)
    return folder


def test_a_sweep_against_two_factors(swept: Path, tmp_path: Path) -> None:
    points = read_sweep(swept)
    draw_sweep_factors(points, tmp_path / "f.svg")
    rows = read(tmp_path / "f.svg")
    cells = json.loads((swept / "cells.json").read_text())
    means = {(float(row["position"]), row["line"]): float(row["mean"]) for row in rows}
    for cell in cells:
        key = cell["settings"]["algorithm.rho"], cell["settings"]["model.name"]
        assert means[key] == pytest.approx(np.mean(cell["accuracies"]))
    assert {row["seeds"] for row in rows} == {"2"}
    draw_sweep_factors(points, tmp_path / "names.svg", factor="model.name")
    assert "model.name" in (tmp_path / "names.svg").read_text()


def test_a_sweep_of_what_clients_record(swept: Path, tmp_path: Path) -> None:
    points = read_sweep(swept, "proximal_loss")
    folder = swept / json.loads((swept / "cells.json").read_text())[0]["runs"][0]
    recorded = [line["proximal_loss"] for line in RunFolder(folder).clients()]
    assert points[0].values[0] == pytest.approx(np.mean(recorded))
    draw_sweep_factors(points, tmp_path / "p.svg", "proximal_loss")


def test_the_command_line_draws_all_kinds_and_explains_mistakes(
    capsys: pytest.CaptureFixture[str], runs: list[Path], swept: Path, tmp_path: Path
) -> None:
    for kind in ("preservation", "classes", "updates", "participation"):
        code, shown, _ = tiny.call(capsys, "plot", kind, *runs, "--out", tmp_path / f"{kind}.svg")
        assert (code, shown) == (0, f"plot saved to {tmp_path / kind}.svg\n")
    code, shown, _ = tiny.call(capsys, "plot", "sweep", swept, "--out", tmp_path / "s.pdf")
    assert (code, shown) == (0, f"plot saved to {tmp_path / 's.pdf'}\n")
    fedra.run(tiny.table(rounds=1), out=tmp_path / "plain")
    for words, message in (
        (("plot", "classes", tmp_path / "plain"), "must have been trained with diagnostics.classes=true"),
        (("plot", "sweep", tmp_path / "plain"), "must contain a finished sweep"),
        (("plot", "sweep", swept, "--x", "rho"), "must be a factor of the sweep, got 'rho'"),
        (("plot", "sweep", swept, "--metric", "proximal_los"), "did you mean 'proximal_loss'?"),
    ):
        code, _, aside = tiny.call(capsys, *words, "--out", tmp_path / "no.svg")
        assert code == 2
        assert message in aside
    assert not (tmp_path / "no.svg").exists()


def test_a_sweep_with_three_factors_is_refused(tmp_path: Path) -> None:
    from fedra.reports.sweep_factors import SweepPoint

    with pytest.raises(ConfigError, match="must have one or two factors to plot, got 3: a, b, c"):
        draw_sweep_factors([SweepPoint({"a": 1, "b": 2, "c": 3}, (1.0,))], tmp_path / "x.svg")
