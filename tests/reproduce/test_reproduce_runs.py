"""A reproduction on the embedded digits from end to end: estimated, interrupted, resumed, decided, written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedra.errors import ConfigError, DataError
from fedra.experiment import sweep
from fedra.experiment.analyze_curvature import analyze_curvature
from fedra.experiment.evaluating import evaluate
from fedra.reproduce import find_entry, reproduce
from fedra.reproduce import reproduction as module
from fedra.reproduce.entries import PaperEntry, SizeSettings
from fedra.reproduce.estimate import Speed, estimate, run_seconds
from fedra.reproduce.flops import relative_flops
from fedra.reproduce.paper_points import build_grid
from fedra.reproduce.result_page import page_text, write_page
from tiny import cli

TINY = {
    "data": {"name": "digits"},
    "data.fraction": 0.2,
    "model": {"name": "mlp", "hidden": [8]},
    "partition": {"name": "iid", "clients": 4},
    "cohort.fraction": 0.5,
    "cohort.sampling": "keyed",
    "local.epochs": 1,
    "rounds": 2,
    "evaluation.every": 1,
    "runner": {"name": "sequential"},
}


def tiny(entry: PaperEntry, **settings: Any) -> PaperEntry:
    own = entry.sizes["quick"]
    size = replace(own, settings={**own.settings, **TINY, **settings})
    return replace(entry, sizes={**entry.sizes, "quick": size})


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> PaperEntry:
    entry = tiny(find_entry("fedsol", "table6"))
    size = replace(entry.sizes["quick"], rows=("A0", "A1"))
    return replace(entry, sizes={**entry.sizes, "quick": size})


def test_an_interrupted_reproduction_continues_where_it_stopped(
    table: PaperEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sweep.experiment.run
    calls = []

    def interrupt(*args: Any, **settings: Any) -> Any:
        calls.append(settings["out"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*args, **settings)

    monkeypatch.setattr(sweep.experiment, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        reproduce(table, "quick", 3, tmp_path)
    finished = {path: path.read_bytes() for path in tmp_path.rglob("summary.json")}
    assert len(finished) == 2
    monkeypatch.setattr(sweep.experiment, "run", whole)
    found = reproduce(table, "quick", 3, tmp_path)
    assert all(path.read_bytes() == content for path, content in finished.items())
    assert {len(values) for values in found.values.values()} == {3}
    assert [verdict.claim for verdict in found.verdicts] == list(table.claims)
    again = reproduce(table, "quick", 3, tmp_path)
    assert again.values == found.values
    assert str(again.estimated) == "6 runs, all finished"


def test_runs_from_before_a_setting_existed_are_still_known(table: PaperEntry, tmp_path: Path) -> None:
    """Their config.toml lacks the setting, which counts with its default; another value is refused."""
    before = reproduce(table, "quick", 1, tmp_path)
    recorded = sorted(tmp_path.rglob("config.toml"))
    for path in recorded:
        lines = path.read_text().splitlines(keepends=True)
        older = [line for line in lines if not line.startswith(("sampling =", "scope =", "warmup ="))]
        assert len(older) < len(lines)
        path.write_text("".join(older))
    assert reproduce(table, "quick", 1, tmp_path).values == before.values
    path = recorded[0]
    path.write_text(path.read_text().replace("epochs = 1", "epochs = 2"))
    with pytest.raises(ConfigError, match="must have the same configuration"):
        reproduce(table, "quick", 1, tmp_path)


def test_the_page_and_the_numbers_say_the_same(table: PaperEntry, tmp_path: Path) -> None:
    found = reproduce(table, "quick", 2, tmp_path)
    page, numbers = write_page(found, tmp_path)
    record = json.loads(numbers.read_text())
    text = page.read_text()
    assert text == page_text(found)
    assert "fedra reproduce fedsol table6 --size quick --seeds 2" in text
    assert "64.13" in text  # the paper's number beside ours
    first = record["cells"][0]
    assert f"{sum(first['values']) / 2:.2f}" in text
    assert {claim["outcome"] for claim in record["claims"]} == {"cannot be decided"}
    assert text.count("**cannot be decided**") == len(table.claims)


def test_a_figure_is_drawn_from_its_runs(tmp_path: Path) -> None:
    entry = tiny(find_entry("fedsol", "figure10"))
    found = reproduce(entry, "quick", 1, tmp_path)
    (picture,) = found.pictures
    assert picture.is_file()
    assert found.values["FedAvg", "global to local"][0]


def test_time_and_memory_are_estimated_before_the_first_run(table: PaperEntry, tmp_path: Path) -> None:
    grid = build_grid(table, "quick", 2, tmp_path)
    runs = [run for point in grid.points for run in point.runs]
    found = estimate(runs, cores=1)
    assert (found.runs, found.finished) == (4, 0)
    assert found.seconds > 0
    assert found.megabytes is None or found.megabytes > 50
    assert "4 runs; estimated" in str(found)


def test_the_estimate_is_rounds_times_clients(table: PaperEntry, tmp_path: Path) -> None:
    config = build_grid(table, "quick", 1, tmp_path).points[0].runs[0][1]
    speed = Speed(client=2.0, test=3.0, clients=4, megabytes=None, grown=0.0)
    assert run_seconds(config, speed, cores=8) == pytest.approx(2 * 2 * 2.0 + 2 * 3.0)  # sequential: one at a time
    pooled = config.model_copy(update={"runner": config.runner.model_copy(update={"name": "processes"})})
    assert run_seconds(pooled, speed, cores=2) == pytest.approx(2 * 2 * 2.0 / 2 + 2 * 3.0)


def test_missing_data_are_reported_with_what_to_supply(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDRA_OFFLINE", "1")
    monkeypatch.setenv("FEDRA_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"fedgc table1.*CASIA-WebFace as InsightFace packs it"):
        reproduce(find_entry("fedgc", "table1"), "paper", 1, tmp_path)


def test_what_does_not_train_or_has_no_such_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must train"):
        reproduce(find_entry("fedsol", "figure1"), "small", 1, tmp_path)
    with pytest.raises(ConfigError, match="small, medium, paper"):
        reproduce(find_entry("fedsol", "table9"), "quick", 1, tmp_path)


def test_counted_operations_of_fedsol_exceed_fedavg(tmp_path: Path) -> None:
    entry = tiny(find_entry("fedsol", "table8"))
    grid = build_grid(entry, "quick", 1, tmp_path)
    counted = {row: relative_flops(grid.cells[row, "rho 2.0"][0][1]) for row in ("All", "Head")}
    assert relative_flops(grid.cells["All", "rho 0.0"][0][1]) == 1.0
    assert 1.9 < counted["All"] < 3.2  # a second forward and backward pass, and the frozen model's forward pass
    assert 1.0 < counted["Head"] < counted["All"]


def test_the_command_lists_estimates_and_runs(
    table: PaperEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(["reproduce", *words])
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert "figure10" in call("--list")
    monkeypatch.setattr("fedra.reproduce.entries.find_entry", lambda paper, name: table)
    words = ("fedsol", "table6", "--size", "quick", "--seeds", "1", "--out", str(tmp_path))
    assert "estimated" in call(*words, "--estimate")
    assert not (tmp_path / "runs").exists()
    shown = call(*words)
    assert "cannot be decided" in shown
    assert (tmp_path / "fedsol-table6-quick.md").is_file()


def test_a_pretrained_model_is_trained_first(tmp_path: Path) -> None:
    entry = tiny(find_entry("fedsol", "table6"))
    size: SizeSettings = replace(
        entry.sizes["quick"],
        rows=("A0",),
        first={"config": "quickstart.toml", "set": {**TINY, "rounds": 1}, "key": "model.weights"},
    )
    found = reproduce(replace(entry, sizes={**entry.sizes, "quick": size}), "quick", 1, tmp_path)
    config = found.grid.points[0].runs[0][1]
    assert config.model.weights is not None
    assert Path(config.model.weights, "model.safetensors").is_file()
    assert module.OUT.name == "reproduce"


def test_every_seed_can_have_a_start_of_its_own(tmp_path: Path) -> None:
    entry = tiny(find_entry("fedsol", "table6"))
    first = {"config": "quickstart.toml", "set": {**TINY, "rounds": 1}, "key": "model.weights"}
    quick = entry.sizes["quick"]

    def starts(size: SizeSettings) -> list[str | None]:
        grid = build_grid(replace(entry, sizes={"quick": size}), "quick", 2, tmp_path)
        assert grid.first is not None
        trained = [str(folder) for _, _, folder in grid.first.runs]
        (runs,) = grid.cells.values()
        used = [config.model.weights for _, config, _ in runs]
        assert set(used) == set(trained)
        return used

    common = starts(replace(quick, rows=("A0",), first=first))
    assert common[0] == common[1]
    own = starts(replace(quick, rows=("A0",), first={**first, "vary": ["partition.seed"]}, vary=("partition.seed",)))
    assert own[0] != own[1]
    size = replace(quick, rows=("A0",), first={**first, "vary": ["partition.seed"]}, vary=("partition.seed",))
    found = reproduce(replace(entry, sizes={"quick": size}), "quick", 2, tmp_path)
    assert found.grid.first is not None
    assert [config.partition.seed for _, config, _ in found.grid.first.runs] == [0, 1]
    assert all(Path(str(weights), "model.safetensors").is_file() for weights in own)


def test_a_cell_can_be_a_metric_of_the_curvature(tmp_path: Path) -> None:
    entry = tiny(find_entry("fedsol", "figure4"))
    size = replace(entry.sizes["quick"], rows=("FedAvg",), columns=("lambda_1", "lambda_1 / lambda_5", "accuracy %"))
    found = reproduce(replace(entry, sizes={**entry.sizes, "quick": size}), "quick", 1, tmp_path)
    run = found.grid.cells["FedAvg", "lambda_1"][0][2]
    (analysis,) = analyze_curvature([run], planes="none").values()
    metrics = analysis.curvature.metrics()
    assert found.values["FedAvg", "lambda_1"] == [metrics["lambda_1"]]
    assert found.values["FedAvg", "lambda_1 / lambda_5"] == [metrics["lambda_1_over_lambda_5"]]


def test_a_cell_can_be_the_accuracy_of_classes_with_few_images(tmp_path: Path) -> None:
    entry = tiny(find_entry("fedsol", "table6"))
    named = [
        replace(entry.columns[0], name=name, metric=f"on:test:classification:accuracy_by_images/{at}/accuracy")
        for name, at in (("few", 0), ("many", -1))
    ]
    size = replace(entry.sizes["quick"], rows=("A0",))
    found = reproduce(replace(entry, columns=tuple(named), sizes={"quick": size}), "quick", 1, tmp_path)
    run = found.grid.cells["A0", "few"][0][2]
    groups = evaluate(run, protocols=("classification",)).metrics["classification"]["accuracy_by_images"]
    assert found.values["A0", "few"] == [100 * groups[0]["accuracy"]]
    assert found.values["A0", "many"] == [100 * groups[-1]["accuracy"]]


def test_the_page_counts_runs_whose_embeddings_collapsed(table: PaperEntry, tmp_path: Path) -> None:
    found = reproduce(table, "quick", 1, tmp_path)
    assert "in one direction" not in page_text(found)
    summary = found.grid.folders[0] / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "collapsed": "all point in one direction"}))
    assert "1 of the runs have embeddings in one direction, and are counted at chance level." in page_text(found)
