"""Curvature of finished runs: files, repeatability, and the loss that it belongs to."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import fedra
import tiny
from fedra.analysis.curvature import measure_curvature
from fedra.analysis.global_loss import GlobalLoss
from fedra.core.evaluate import evaluate
from fedra.errors import ConfigError
from fedra.experiment.analyze_curvature import analyze_curvature
from fedra.experiment.trained_run import open_trained_run, sample_examples

FILES = {"curvature.json", "curvature.csv", "eigenvalues.svg", "eigenvalues.csv", "density.svg", "density.csv"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("runs")
    fedra.run(tiny.table(rounds=2), out=base / "plain")
    fedra.run(tiny.table(rounds=2, algorithm={"name": "fedsol", "rho": 1.0}), out=base / "sol")
    return [base / "plain", base / "sol"]


def test_the_command_writes_numbers_and_plots_and_repeats(
    capsys: pytest.CaptureFixture[str], runs: list[Path], tmp_path: Path
) -> None:
    words = ("analyze", "curvature", *runs, "--points", "3", "--probes", "2", "--steps", "4", "--examples", "60")
    for name in ("one", "two"):
        code, shown, _ = tiny.call(capsys, *words, "--out", tmp_path / name)
        assert code == 0
        assert "lambda_1 / lambda_5" in shown
        assert shown.endswith(f"numbers and plots saved to {tmp_path / name}\n")
    landscapes = {f"landscape-{kind}.{end}" for kind in ("eigenvectors", "random") for end in ("svg", "csv")}
    assert {path.name for path in (tmp_path / "one").iterdir()} == FILES | landscapes
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
    found = json.loads((tmp_path / "one" / "curvature.json").read_text())
    assert list(found["runs"]) == ["fedavg", "fedsol"]
    values = found["runs"]["fedavg"]["eigenvalues"]
    assert values == sorted(values, reverse=True)
    with open(tmp_path / "one" / "landscape-random.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    middle = [row for row in rows if (row["first"], row["second"]) == ("0.0", "0.0")]
    losses = [one["loss"] for one in found["runs"].values()]
    assert [float(row["loss"]) for row in middle] == pytest.approx(losses)


def test_the_loss_is_the_runs_own_on_its_training_or_test_examples(runs: list[Path]) -> None:
    opened = open_trained_run(runs[0])
    job = opened.built.job
    assert job.test is not None
    test = analyze_curvature(runs[:1], split="test", planes="none", probes=1, steps=2)["fedavg"].curvature
    assert test.examples == 40
    assert test.loss == pytest.approx(evaluate(job.model, opened.weights, job.test, 4).mean_loss, rel=1e-5)
    everything = sample_examples(job, "train", 1000, 0)
    assert len(everything) == sum(job.clients.size(client) for client in range(len(job.clients)))
    some = sample_examples(job, "train", 30, 0)
    known = {tuple(row.tolist()) for row in everything.inputs}
    assert len(some) == 30
    assert {tuple(row.tolist()) for row in some.inputs} < known
    direct = measure_curvature(GlobalLoss(job.model, opened.weights, some), top=5, probes=1, steps=2)
    named = analyze_curvature(runs[:1], examples=30, planes="none", probes=1, steps=2)["fedavg"].curvature
    assert named.metrics() == direct.metrics()


def test_mistakes_are_explained(capsys: pytest.CaptureFixture[str], runs: list[Path], tmp_path: Path) -> None:
    for words, message in (
        (("--points", "4"), "points must be odd"),
        (("--planes", "one"), "planes must be one of"),
        (("--format", "gif"), "must be one of svg, png, pdf"),
        (("--split", "all"), "split must be 'test' or 'train'"),
        (("--top", "1"), "top must be at least 2"),
        (("--radius", "0"), "radius must be positive"),
    ):
        code, _, aside = tiny.call(capsys, "analyze", "curvature", runs[0], *words, "--out", tmp_path / "no")
        assert code == 2, words
        assert message in aside
    assert not (tmp_path / "no").exists()
    with pytest.raises(ConfigError, match="at least one folder"):
        analyze_curvature([])
