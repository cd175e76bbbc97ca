"""Models that give every face one direction: runs, records and tables say so instead of giving a figure."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from rich.console import Console

import fedra
import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.errors import DataError
from fedra.experiment import run
from fedra.experiment.export import export
from fedra.experiment.sweep import outcome
from fedra.faces.benchmarks.protocols import HEADLINES
from fedra.faces.recognition.calibrate import calibrate
from fedra.faces.recognition.recognizer import FaceRecognizer
from fedra.reports.comparison import compare
from fedra.reports.sweep_table import Point
from fedra.storage.run_folder import RunFolder

FACES = {
    "name": "synthetic-faces",
    "identities": 5,
    "images": 8,
    "size": 32,
    "test_identities": 5,
    "test_fraction": 0.5,
}
ONE_WAY = "embeddings point in one direction"


@pytest.fixture(autouse=True, scope="module")
def _own_data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRA_DATA", str(tmp_path_factory.getbasetemp() / "collapsed-data"))
        patch.setattr(Curves, "on_run_end", Callback.on_run_end)
        yield


def config(**sections: Any) -> dict[str, Any]:
    return tiny.table(
        **{
            "data": FACES,
            "model": {"name": "mobilefacenet-tiny", "embedding": 8, "norm": "group"},
            "rounds": 2,
            "partition": {"name": "identity", "clients": 0},
            "local": {"epochs": 1, "batch": 4, "lr": 0.0005},
        }
        | sections
    )


def collapse(folder: Path, into: Path) -> Path:
    """The folder's weights with every convolution zero: whatever a face looks like, biases alone are left."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        about = file.metadata()
    broken = {
        name: torch.zeros_like(value) if value.dim() > 1 and name.startswith("body") else value + 0.5
        for name, value in tensors.items()
    }
    safetensors.torch.save_file(broken, into, about)
    return into


@pytest.fixture(scope="module")
def sound(_own_data: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sound") / "run"
    fedra.run(config(rounds=1), out=out)
    return out


@pytest.fixture(scope="module")
def weights(sound: Path) -> Path:
    return collapse(sound, sound.parent / "collapsed.safetensors")


def collapsed_config(weights: Path, **sections: Any) -> dict[str, Any]:
    table = config(**sections)
    return {**table, "model": {**table["model"], "weights": str(weights)}}


@pytest.fixture(scope="module")
def collapsed(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that begins with a collapsed model, and what a person was told of it."""
    text, out = io.StringIO(), tmp_path_factory.mktemp("collapsed") / "run"
    run.run(collapsed_config(weights), out=out, console=Console(file=text, width=300))
    return out, text.getvalue()


def test_a_verified_run_says_so_in_every_round_and_warns_once(collapsed: tuple[Path, str]) -> None:
    folder, told = collapsed
    for line in tiny.metrics(folder):
        assert line["accuracy"] is line["auroc"] is line["loss"] is None
        assert ONE_WAY in line["collapsed"]
    assert "round 2/2  embeddings collapsed" in told
    assert told.count("round 1: warning: the model's embeddings have collapsed") == 1
    assert told.count("warning") == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["final_accuracy"] is summary["best_accuracy"] is None
    assert ONE_WAY in summary["collapsed"]
    assert summary["chance_accuracy"] == 0.5


def test_a_sound_run_says_nothing(sound: Path) -> None:
    summary = json.loads((sound / "summary.json").read_text())
    assert "collapsed" not in json.dumps([summary, tiny.metrics(sound)])
    assert summary["final_accuracy"] is not None


def test_a_run_that_collapses_late_keeps_its_best_and_has_no_final_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedra.experiment.evaluators import verification_evaluator as evaluator

    seen: list[int] = []

    def embed(*given: Any) -> torch.Tensor:
        seen.append(1)
        features = found(*given)
        return features if len(seen) < 3 else torch.ones_like(features)

    found = evaluator.embed
    monkeypatch.setattr(evaluator, "embed", embed)
    text = io.StringIO()
    result = run.run(config(rounds=3), out=tmp_path / "run", console=Console(file=text, width=300))
    accuracies = [line["accuracy"] for line in result.metrics]
    assert accuracies[2] is None
    assert result.summary["final_accuracy"] is None
    assert result.summary["best_accuracy"] == max(accuracies[:2])
    assert "round 3: warning: the model's embeddings have collapsed" in text.getvalue()


def test_clients_among_strangers(weights: Path, tmp_path: Path) -> None:
    text = io.StringIO()
    table = collapsed_config(weights, algorithm={"name": "fedfs"}, evaluation={"protocol": "clients"}, rounds=1)
    result = run.run(table, out=tmp_path / "run", console=Console(file=text, width=300))
    summary, (line,) = result.summary, result.metrics
    for key in ("auroc", "auroc_macro", "eer", "tpir", "fpir_smallest"):
        assert line[key] is summary[f"frozen_{key}"] is summary[f"global_{key}"] is summary[f"personal_{key}"] is None
    assert line["accuracy"] is summary["final_accuracy"] is None
    assert ONE_WAY in line["collapsed"]
    assert ONE_WAY in summary["frozen_collapsed"]
    assert ONE_WAY in summary["global_collapsed"]
    assert summary["collapsed_clients"] == summary["tested_clients"] == 5
    assert "diverged_clients" not in summary
    assert (summary["genuine"], summary["impostors"]) == (10, 80)
    assert "by model: frozen none, global none, personal none" in text.getvalue()
    assert "personal models of 5 of 5 clients have collapsed" in text.getvalue()
    for told in tiny.lines(tmp_path / "run" / "recognition.jsonl"):
        assert told["global_auroc"] is told["personal_auroc"] is None
        assert ONE_WAY in told["collapsed"]
    assert not (tmp_path / "run" / "recognition.svg").exists()


def test_one_clients_own_model_is_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedra.experiment.evaluators import recognition

    found = recognition.train_personal_models

    def one_zero(*given: Any) -> Any:
        for client, own in found(*given):
            if client == 2:
                own = own._replace(params={name: torch.zeros_like(value) for name, value in own.params.items()})
            yield client, own

    monkeypatch.setattr(recognition, "train_personal_models", one_zero)
    table = config(algorithm={"name": "fedfs"}, evaluation={"protocol": "clients"}, rounds=1)
    summary = fedra.run(table, out=tmp_path / "run").summary
    assert summary["collapsed_clients"] == 1
    assert summary["personal_auroc"] is not None
    lines = {line["client"]: line for line in tiny.lines(tmp_path / "run" / "recognition.jsonl")}
    assert "are zero" in lines[2]["collapsed"]
    assert lines[2]["personal_auroc"] is None
    assert lines[2]["global_auroc"] is not None
    assert all("collapsed" not in lines[client] for client in (0, 1, 3, 4))


def test_eval_gives_the_reason_and_nulls(collapsed: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    names = ("verification", "identification", "open-set", "clients", "training-gallery")
    protocols = [word for name in names for word in ("--protocol", name)]
    code, shown, aside = tiny.call(capsys, "eval", collapsed[0], *protocols)
    assert code == 0
    assert shown.count(ONE_WAY) == len(names)
    assert "warning: the model's embeddings have collapsed" in aside
    record = json.loads((collapsed[0] / "eval-test.json").read_text())["protocols"]
    for name in names:
        figures = record[name]["metrics"]
        assert ONE_WAY in figures["collapsed"]
        assert all(figures[key] is None for key in HEADLINES[name])  # type: ignore[index]
        assert record[name]["pictures"] == []


def test_the_nulls_are_figures_of_a_sound_model(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("verification", "identification", "open-set", "clients", "training-gallery")
    tiny.call(capsys, "eval", sound, *[word for name in names for word in ("--protocol", name)])
    record = json.loads((sound / "eval-test.json").read_text())["protocols"]
    for name in names:
        assert all(record[name]["metrics"][key] is not None for key in HEADLINES[name])  # type: ignore[index]


def test_a_sweep_counts_it_as_failed_and_a_comparison_names_it(sound: Path, collapsed: tuple[Path, str]) -> None:
    folders = (sound, collapsed[0])
    cell = outcome(Point((), tuple((seed, RunFolder(path).config(), path) for seed, path in enumerate(folders))))
    assert cell.failed == 1
    assert cell.accuracies[1] == 50
    text = io.StringIO()
    Console(file=text, width=200).print(compare(folders).table)
    assert text.getvalue().count("collapsed") >= 1
    final = json.loads((sound / "summary.json").read_text())["final_accuracy"]
    assert f"{100 * final:.2f}" in text.getvalue()


def test_a_model_card_says_so(collapsed: tuple[Path, str], tmp_path: Path) -> None:
    card = export(collapsed[0], tmp_path / "net.onnx").card.read_text()
    assert f"| verification accuracy, last | none: all 40 {ONE_WAY} |" in card


def test_no_threshold_is_chosen(collapsed: tuple[Path, str]) -> None:
    recognizer = FaceRecognizer(collapsed[0])
    with pytest.raises(DataError, match=rf"must not be collapsed to choose a threshold, .* \(all \d+ {ONE_WAY}\)"):
        calibrate(recognizer, "synthetic-faces:identities=2,images=4,size=32,test_identities=3", 0.1)
