"""Runs whose clients recognize their own people: by the frozen, the global and their own models."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import fedra
import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.config.reading import read, write
from fedra.config.resolve import record_weights_digest
from fedra.core.batches import Examples
from fedra.core.evaluate import embed
from fedra.core.model import Model, Weights
from fedra.core.round import init_server
from fedra.errors import ConfigError, DataError, RunFailed
from fedra.experiment.build import build
from fedra.experiment.evaluators.client_evaluator import ClientEvaluator
from fedra.experiment.result import RunResult
from fedra.faces.metrics import ClientScores, enrolled_scores
from fedra.storage.run_folder import RunFolder
from fedra.storage.trained_model import load_embedder

FACES = {
    "name": "synthetic-faces",
    "identities": 5,
    "images": 8,
    "size": 32,
    "test_identities": 0,
    "test_fraction": 0.5,
}
# Its embeddings stay apart: without statistics of its own, or at a higher rate, the tiny network collapses.
MODEL = {"name": "mobilefacenet-tiny", "embedding": 8, "norm": "group"}


@pytest.fixture(autouse=True, scope="module")
def _own_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRA_DATA", str(tmp_path_factory.getbasetemp() / "recognized-data"))
        patch.setattr(Curves, "on_run_end", Callback.on_run_end)  # drawing is most of a tiny run's time
        yield


@pytest.fixture(scope="module")
def finished(_own_data: None, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run that several tests look at."""
    return fedra.run(config(), out=tmp_path_factory.mktemp("recognized") / "run")


def folder_of(result: RunResult) -> Path:
    assert result.folder is not None
    return result.folder


def config(**sections: Any) -> dict[str, Any]:
    return tiny.table(
        **{
            "data": FACES,
            "model": MODEL,
            "rounds": 2,
            "partition": {"name": "identity", "clients": 0},
            "algorithm": {"name": "fedfs"},
            "cohort": {"fraction": 0.6},
            "evaluation": {"protocol": "clients"},
            "local": {"epochs": 1, "batch": 4, "lr": 0.0005},
            "runner": {"name": "sequential"},
        }
        | sections
    )


def judge_of(table: dict[str, Any]) -> ClientEvaluator:
    evaluator = build(read(table)).evaluator
    assert isinstance(evaluator, ClientEvaluator)
    return evaluator


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "recognition.jsonl").read_text().splitlines()]


def test_a_run_gives_three_models_figures_a_table_and_a_picture(finished: RunResult) -> None:
    summary, last = finished.summary, finished.metrics[-1]
    assert summary["protocol"] == "clients"
    assert summary["tested_clients"] == 5
    assert {"frozen_auroc", "global_tpir", "personal_auroc_macro", "personal_fpir_smallest"} <= summary.keys()
    for key in ("auroc", "auroc_macro", "eer", "tpir", "fpir_smallest"):
        assert last[key] == pytest.approx(summary[f"global_{key}"])
    assert last["accuracy"] == pytest.approx(1 - last["eer"])
    assert summary["global_auroc"] != summary["personal_auroc"]
    table = lines(folder_of(finished))
    assert len(table) == 5
    for name in ("frozen", "global", "personal"):
        mean = sum(line[f"{name}_auroc"] for line in table) / 5
        assert mean == pytest.approx(summary[f"{name}_auroc_macro"])
    assert (folder_of(finished) / "recognition.svg").stat().st_size > 1000


def test_enrolled_images_and_probes_are_never_trained_on() -> None:
    built = build(read(config()))
    assert isinstance(built.evaluator, ClientEvaluator)
    trained = {image.numpy().tobytes() for image in built.dataset.train.inputs}
    shown = torch.unique(torch.cat([device.rows for device in built.evaluator.devices]))
    held_out = {image.numpy().tobytes() for image in built.dataset.known_test.inputs[shown]}
    assert len(held_out) == 20
    assert not trained & held_out


def test_the_global_figures_are_those_of_the_runs_embedder(finished: RunResult) -> None:
    known, evaluator = build(read(config())).dataset.known_test, judge_of(config())
    features = load_embedder(folder_of(finished))(known.inputs)
    scores = {
        d.client: enrolled_scores(features[d.enrolled], features[d.probes], features[d.impostors])
        for d in evaluator.devices
    }
    assert finished.summary["global_auroc"] == pytest.approx(ClientScores.of(scores).pooled().auroc(), abs=1e-6)


def test_a_client_scores_by_the_model_it_trained_last(finished: RunResult) -> None:
    built = build(read(config()))
    assert isinstance(built.evaluator, ClientEvaluator)
    known, table = built.dataset.known_test, {line["client"]: line for line in lines(folder_of(finished))}
    server = init_server(built.job.algorithm, built.job.initial())
    state = RunFolder(folder_of(finished)).checkpoint.load(server)
    took_part = 0
    for device in built.evaluator.devices:
        last = state.memory.get(device.client).get("keep-last")
        weights = state.server.weights if last is None else Weights(last["params"], last.get("buffers", {}))
        took_part += last is not None
        model: Model = built.job.model
        rows = Examples(known.inputs[device.rows], known.targets[device.rows], built.job.clients[0].transform)
        features = embed(model, Weights(*(model.arrange(values) for values in weights)), rows)
        parts = torch.split(features, [len(device.enrolled), len(device.probes), len(device.impostors)])
        own = ClientScores.of({0: enrolled_scores(*parts)}).pooled().auroc()
        assert table[device.client]["personal_auroc"] == pytest.approx(own, abs=1e-6)
    assert 3 <= took_part <= 5


def test_the_frozen_model_is_the_one_in_the_weights(finished: RunResult) -> None:
    second = fedra.run(config(rounds=1, model={**MODEL, "weights": str(folder_of(finished))})).summary
    for key in ("auroc", "eer", "tpir"):
        assert second[f"frozen_{key}"] == pytest.approx(finished.summary[f"global_{key}"])


def test_other_weights_than_the_run_began_with_are_refused(finished: RunResult, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    shutil.copy(folder_of(finished) / "model.safetensors", weights)
    recorded = record_weights_digest(read(config(model={**MODEL, "weights": str(weights)})))
    build(recorded)
    tensors = safetensors.torch.load_file(weights)
    safetensors.torch.save_file({name: value + 1 for name, value in tensors.items()}, weights)
    with pytest.raises(ConfigError, match=r"weights.safetensors' must be those that the run started with"):
        build(recorded)
    with pytest.raises(DataError, match=r"must hold a model.safetensors.*pass the folder of a finished run"):
        record_weights_digest(read(config(model={**MODEL, "weights": str(tmp_path)})))


def test_several_people_a_client_and_methods_without_own_models() -> None:
    result = fedra.run(config(partition={"name": "identity", "clients": 2}, algorithm={"name": "fedaws"}))
    assert result.summary["tested_clients"] == 2
    assert "personal_auroc" not in result.summary
    assert result.summary["impostors"] == 3 * 8 + 2 * 12  # templates times the other client's images


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "local-only", "plus": ["intra-subject"]},
        {"name": "moon", "plus": ["intra-subject", {"name": "sharing", "frozen": ["head."]}, "keep-last"]},
        {"name": "fedface", "plus": ["keep-last"]},
    ],
    ids=lambda table: table["name"],
)
def test_baselines_in_the_same_protocol(algorithm: dict[str, Any]) -> None:
    summary = fedra.run(config(algorithm=algorithm, rounds=1)).summary
    assert 0 <= summary["personal_auroc"] <= 1
    if algorithm["name"] == "local-only":
        assert summary["global_auroc"] == summary["frozen_auroc"]


def test_settings_bound_the_test() -> None:
    evaluator = judge_of(config(evaluation={"protocol": "clients", "tested": 3, "impostors": 2, "enroll": 1}))
    assert [(len(d.enrolled), len(d.probes), len(d.impostors)) for d in evaluator.devices] == [(1, 3, 2)] * 3
    everybody = read(config(evaluation={"protocol": "clients", "tested": 0, "impostors": 0}))
    again = read(tomllib.loads(write(everybody))).evaluation
    for found in (everybody.evaluation, again):
        assert (found.tested, found.impostors) == (None, None)


def test_mistakes_are_told() -> None:
    with pytest.raises(ConfigError, match=r"'clients' needs test images of the training identities"):
        fedra.run(config(data={**FACES, "test_fraction": 0.0, "test_identities": 3}))
    with pytest.raises(DataError, match=r"at least 2 clients must have 2 held-out images of a person .*, got 0"):
        fedra.run(config(data={**FACES, "images": 4, "test_fraction": 0.2}))
    with pytest.raises(ConfigError, match=r"evaluation\.tested"):
        fedra.run(config(evaluation={"protocol": "clients", "tested": 1}))
    evaluator = judge_of(config())
    with pytest.raises(RunFailed, match=r"client 0 cannot be tested: .* contains NaN"):
        evaluator._search(evaluator.devices[0], torch.full((len(evaluator.devices[0].rows), 4), torch.nan))
