"""The records of `fedra eval`: one for each set, in which protocols gather."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tiny
from fedra.errors import ConfigError
from fedra.evaluation.results import ModelEvaluation, Protocol, ProtocolResult
from fedra.experiment import evaluate_network, evaluating
from fedra.experiment.evaluate_model import evaluate_run_test
from fedra.storage.evaluation_record import write_evaluation


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """As much of a run as a record looks at."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").write_bytes(b"first")
    return tmp_path / "run"


def found(protocol: Protocol, source: str, name: str = "crops") -> ModelEvaluation:
    picture = "cmc.svg" if protocol == "identification" else "roc.svg"

    def draw(path: Path) -> None:
        path.write_text(source)

    outcome = ProtocolResult({"of": source}, {"line": "1"}, {picture: draw})
    return ModelEvaluation(name, name, {protocol: outcome}, source)


def record(path: Path) -> Any:
    return json.loads(path.read_text())


def test_protocols_on_one_set_gather(run: Path) -> None:
    write_evaluation(found("identification", "/a/crops"), run, model=run, settings={"flip": "sum"})
    path = write_evaluation(found("verification", "/a/crops"), run, model=run, settings={"flip": "none"})
    assert path == run / "eval-crops.json"
    protocols = record(path)["protocols"]
    assert list(protocols) == ["verification", "identification"]
    assert [part["settings"]["flip"] for part in protocols.values()] == ["none", "sum"]


def test_a_set_of_the_same_name_has_a_record_of_its_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_evaluation(found("verification", "/a/crops"), run, model=run)
    second = write_evaluation(found("verification", "/b/crops"), run, Console(width=300), model=run)
    assert "eval-crops.json belongs to other data or another model: writing eval-crops-" in (capsys.readouterr().out)
    assert first != second
    assert write_evaluation(found("identification", "/b/crops"), run, model=run) == second
    assert list(record(second)["protocols"]) == ["verification", "identification"]
    assert record(first)["protocols"]["verification"]["metrics"] == {"of": "/a/crops"}
    assert (run / "eval-crops-roc.svg").read_text() == "/a/crops"


@pytest.mark.parametrize("own_first", [True, False])
def test_the_runs_own_test_data_keep_their_name(run: Path, own_first: bool) -> None:
    own, other = found("verification", "test", "test"), found("verification", "/other/test", "test")
    for evaluation in (own, other) if own_first else (other, own):
        write_evaluation(evaluation, run, model=run)
    assert record(run / "eval-test.json")["source"] == "test"
    assert len(list(run.glob("eval-test-*.json"))) == 1


def test_another_model_in_the_folder_is_kept_apart_and_a_changed_one_starts_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one.pt", tmp_path / "two.pt"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    first = write_evaluation(found("identification", "/a/crops"), tmp_path, model=one)
    assert write_evaluation(found("verification", "/a/crops"), tmp_path, model=two) != first
    one.write_bytes(b"other")
    assert write_evaluation(found("verification", "/a/crops"), tmp_path, Console(width=300), model=one) == first
    assert list(record(first)["protocols"]) == ["verification"]
    assert not (tmp_path / "eval-crops-cmc.svg").exists()
    assert "the model has changed: removed its earlier identification from eval-" in capsys.readouterr().out


def test_a_damaged_record_is_written_anew_and_one_of_an_older_version_is_left(run: Path) -> None:
    (run / "eval-crops.json").write_text("{")
    assert write_evaluation(found("verification", "/a/crops"), run, model=run) == run / "eval-crops.json"
    (run / "eval-crops.json").write_text('{"data": "crops", "protocols": {}}')
    assert write_evaluation(found("verification", "/a/crops"), run, model=run) != run / "eval-crops.json"


def test_megaface_needs_its_own_lists(run: Path) -> None:
    with pytest.raises(ConfigError, match="'megaface' needs a MegaFace folder with its lists"):
        evaluate_run_test(run, ("megaface",))


def test_a_folder_with_a_network_keeps_its_own_record(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluating, "_embedder_of_path", lambda *_: None)
    monkeypatch.setattr(evaluate_network, "evaluate_on", lambda *_, **__: found("verification", "/a/crops"))
    code, _, error = tiny.call(capsys, "eval", run, "--on", "crops", "--network", "mobilefacenet-tiny")
    assert code == 0, error
    assert (run / "eval-crops.json").is_file()
    assert not (run.parent / "eval-crops.json").exists()
