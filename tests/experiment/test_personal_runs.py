"""Runs with personal models: what is told, written, drawn, counted and compared."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fedra
import tiny
from fedra.errors import ConfigError
from fedra.experiment import experiment as own
from fedra.experiment import run as experiment

TUNED = {"name": "fedavg", "plus": [{"name": "fine-tune", "epochs": [1, 3]}]}


def run(out: Path | None = None, **sections: Any) -> tuple[dict[str, Any], str]:
    """The summary, and what a person was told."""
    text = io.StringIO()
    console = Console(file=text, width=300)
    result = experiment.run(tiny.table(**sections), out=out, console=console)
    return result.summary, text.getvalue()


def test_a_run_tells_writes_and_draws(tmp_path: Path) -> None:
    summary, told = run(tmp_path / "run", algorithm=TUNED)
    lines = tiny.lines(tmp_path / "run" / "personalized.jsonl")
    assert [line["client"] for line in lines] == [0, 1, 2, 3]
    for way in ("", "_after_1", "_after_3"):
        mean = sum(line[f"accuracy{way}"] for line in lines) / 4
        assert summary[f"personalized_accuracy{way}"] == pytest.approx(mean)
        assert f"personalized_accuracy{way}_std" in summary
        assert f"personalized_accuracy{way}_worst_decile" in summary
    assert summary["personalized_accuracy"] == summary["personalized_accuracy_after_3"]
    for epochs in (1, 3):
        share = summary[f"personalized_accuracy_after_{epochs}"]
        assert f"personal models after {epochs} epochs: mean accuracy {100 * share:.2f} %" in told
    assert f"same test sets: mean accuracy {100 * summary['global_on_clients_accuracy']:.2f} %" in told
    picture = (tmp_path / "run" / "personalized.svg").read_text()
    assert picture.startswith("<?xml")
    assert 1_000 < len(picture) < 60_000
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["personalized_accuracy"] > 0


@pytest.mark.parametrize("name", ["local-only", "fedper", "lg-fedavg", "per-fedavg", "knn-per", "ditto", "apfl"])
def test_every_method_runs_from_a_configuration(name: str) -> None:
    summary, told = run(rounds=1, algorithm={"name": name})
    assert 0 <= summary["personalized_accuracy"] <= 1
    assert "personal models: " in told


def test_fedrep_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"local.epochs must be larger than 1"):
        run(algorithm={"name": "fedrep"})
    summary, _ = run(rounds=1, algorithm={"name": "fedrep"}, local={"epochs": 2})
    assert "personalized_accuracy" in summary


def test_nothing_travels_when_nothing_is_shared() -> None:
    alone, _ = run(algorithm={"name": "local-only"})
    assert alone["bytes_up"] == alone["bytes_down"] == 0
    plain, _ = run(algorithm={"name": "fedavg"})
    tied, _ = run(algorithm={"name": "ditto"})
    assert (tied["bytes_up"], tied["bytes_down"]) == (plain["bytes_up"], plain["bytes_down"])
    body, _ = run(algorithm={"name": "fedper"})
    head = 4 * (8 * 4 + 4)  # bytes of a head of four classes on eight features
    assert plain["bytes_up"] - body["bytes_up"] == plain["bytes_down"] - body["bytes_down"] == 3 * 4 * head


def test_local_training_alone_leaves_the_global_model_at_its_start() -> None:
    lines = fedra.run(tiny.table(algorithm={"name": "local-only"})).metrics
    assert len({line["accuracy"] for line in lines}) == 1
    losses = [line["train_loss"] for line in lines]
    assert losses[-1] < losses[0]


def test_a_data_set_without_tests_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    built = own.build

    def untested(config: Any, **rest: Any) -> Any:
        found = built(config, **rest)
        return replace(found, job=replace(found.job, test=None))

    monkeypatch.setattr(own, "build", untested)
    summary, told = run(algorithm=TUNED)
    assert "personalized_accuracy" not in summary
    assert "personal models are not tested, because the data set has no test examples" in told


def test_compare_shows_own_models_where_there_are_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, _ = run(tmp_path / "own", algorithm=TUNED)
    run(tmp_path / "plain", algorithm={"name": "fedprox"})
    picture = tmp_path / "both.svg"
    _, told, _ = tiny.call(capsys, "compare", tmp_path / "own", tmp_path / "plain", "--out", picture)
    assert "own %" in told
    assert "worst decile" in told
    assert f"{100 * own['personalized_accuracy']:.2f}" in told
    assert f"± {100 * own['personalized_accuracy_std']:.2f}" in told
    _, told, _ = tiny.call(capsys, "compare", tmp_path / "plain", "--out", picture)
    assert "own %" not in told


def test_the_command_tells_whose_accuracy_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "c.toml"
    empty.write_text("")
    words = (*tiny.WORDS, "algorithm.name=ditto", "rounds=1")
    _, told, _ = tiny.call(capsys, "run", empty, *words, "--out", tmp_path / "run")
    assert "the global model's accuracy" in told.replace("\n", " ")


def test_a_resumed_run_ends_with_the_same_own_models(tmp_path: Path) -> None:
    """What clients remember of a twin comes back from the checkpoint."""
    algorithm = {"name": "ditto", "strength": 0.5}
    whole, _ = run(tmp_path / "whole", algorithm=algorithm)
    run(tmp_path / "short", rounds=2, algorithm=algorithm)
    (tmp_path / "short" / "summary.json").unlink()
    config = tmp_path / "short" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 3"))
    again = experiment.resume(tmp_path / "short").summary
    assert again["personalized_accuracy"] == whole["personalized_accuracy"]
    assert (tmp_path / "short" / "personalized.jsonl").read_text() == (
        tmp_path / "whole" / "personalized.jsonl"
    ).read_text()
