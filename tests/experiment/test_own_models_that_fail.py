"""Clients' own models that cannot be trained or tested are refused before the rounds; those that diverge are named."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import fedra
import tiny
from fedra import simulate
from fedra.algorithms import fedavg
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.config.reading import read
from fedra.core.model import Weights
from fedra.errors import ConfigError, DataError, RunFailed
from fedra.evaluation import personal_models as personalized
from fedra.experiment import execution, run
from fedra.experiment.build import build
from fedra.experiment.evaluators import recognition
from fedra.models import build as build_model
from fedra.parts.personalize import FineTune

FACES = {"name": "synthetic-faces", "identities": 5, "images": 8, "size": 32}
RECOGNIZERS: dict[str, Any] = {
    "data": {**FACES, "test_identities": 0, "test_fraction": 0.5},
    "model": {"name": "mobilefacenet-tiny", "embedding": 8, "norm": "group"},
    "rounds": 1,
    "partition": {"name": "identity", "clients": 0},
    "algorithm": {"name": "fedfs"},
    "evaluation": {"protocol": "clients"},
    "local": {"epochs": 1, "batch": 4, "lr": 0.0005},
}


@pytest.fixture(autouse=True)
def _own_data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRA_DATA", str(tmp_path_factory.getbasetemp() / "failing-own-data"))
    monkeypatch.setattr(Curves, "on_run_end", Callback.on_run_end)  # drawing is most of a tiny run's time


def told_by(out: Path, table: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The summary as it was written, and what a person was told."""
    text = io.StringIO()
    run.run(table, out=out, console=Console(file=text, width=300))
    assert (out / "model.safetensors").exists()
    return json.loads((out / "summary.json").read_text()), text.getvalue()


def without(module: Any, clients: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the own models of these clients be found not finite."""
    found: Callable[..., Iterator[tuple[int, Weights | None]]] = personalized.train_personal_models

    def some(*given: Any) -> Iterator[tuple[int, Weights | None]]:
        yield from ((client, None if client in clients else weights) for client, weights in found(*given))

    monkeypatch.setattr(module, "train_personal_models", some)


def test_a_client_without_test_examples_is_refused_where_strangers_are_verified(tmp_path: Path) -> None:
    """With people held out, `auto` means verification; own models are tested on the known people's images still."""
    rng = np.random.default_rng(0)
    for person, images in enumerate((8, 8, 8, 8, 8, 2)):
        (tmp_path / f"person{person}").mkdir()
        for number in range(images):
            pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"person{person}" / f"{number}.png")
    table = tiny.table(
        data={"name": "faces", "folders": [str(tmp_path)], "size": 32, "test_identities": 2, "test_fraction": 0.2},
        partition={"name": "identity", "clients": 0},
        algorithm={"name": "fedavg", "plus": ["keep-last"]},
    )
    plain = build(read({**table, "algorithm": {"name": "fedavg"}}))
    assert plain.protocol == "verification"
    with pytest.raises(DataError, match=r"client \d must have a class that is in the test set"):
        build(read(table))


def test_every_protocol_but_clients_asks_for_test_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("fedra.experiment.build.check_clients_testable", asked.append)
    data = {**FACES, "test_identities": 2, "test_fraction": 0.25}
    table = tiny.table(data=data, partition={"name": "identity", "clients": 0}, model=RECOGNIZERS["model"])
    for name, protocol in (("verification", "auto"), ("clients", "clients")):
        algorithm = {"name": "fedavg", "plus": ["keep-last"]}
        built = build(read({**table, "algorithm": algorithm, "evaluation": {"protocol": protocol}}))
        assert built.protocol == name
    assert len(asked) == 1


def test_classes_too_many_for_a_test_set_are_refused() -> None:
    data = {"name": "synthetic", "examples": 2200, "test_examples": 1100, "classes": 1100, "shape": [6]}
    algorithm = {"name": "fedavg", "plus": ["keep-last"]}
    with pytest.raises(DataError, match=r"client 0 must have .* each of the \d+ classes that they share is rarer"):
        build(read(tiny.table(data=data, partition={"name": "iid", "clients": 1}, algorithm=algorithm)))


def test_a_simulation_refuses_before_its_rounds_too() -> None:
    targets = torch.cat([torch.zeros(1, dtype=torch.long), torch.ones(1500, dtype=torch.long)])
    clients = [(torch.randn(1501, 6), targets)]
    test = (torch.randn(20, 6), torch.zeros(20, dtype=torch.long))
    rounds = Console(file=io.StringIO())
    with pytest.raises(DataError, match="so its test set would be empty"):
        simulate(
            fedavg().plus(FineTune(1)), build_model("mlp", (6,), 2, seed=0), clients, test, rounds=1, console=rounds
        )


@pytest.mark.parametrize("name", ["fedarc", "fedfr", "fedpe", "fedper", "moon", "scaffold"])
def test_fine_tuning_is_the_same_in_processes(name: str) -> None:
    """Terms that fine-tuning drops take their parameters along."""
    table = tiny.table(rounds=1, algorithm={"name": name, "plus": [{"name": "fine-tune", "epochs": 1}]})
    alone = fedra.run(table).summary
    apart = fedra.run({**table, "runner": {"name": "processes", "workers": 2}}).summary
    assert apart["personalized_accuracy"] == pytest.approx(alone["personalized_accuracy"], abs=0.02)


def test_nothing_to_fine_tune_is_told_before_the_rounds() -> None:
    def table(scope: str) -> dict[str, Any]:
        part = {"name": "fine-tune", "epochs": 1, "scope": scope}
        return tiny.table(rounds=1, model={"name": "logistic"}, algorithm={"name": "fedavg", "plus": [part]})

    with pytest.raises(
        ConfigError, match="clients must be able to train with the part 'fine-tune': at least one parameter"
    ):
        build(read(table("body")))
    assert fedra.run(table("head")).summary["personalized_accuracy"] > 0  # a head is all there is


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "fedavg", "plus": [{"name": "fine-tune", "lr": 1e28}]},
        {"name": "knn-per", "plus": [{"name": "nearest-neighbors", "epochs": 1, "lr": 1e28}]},
        {"name": "ditto", "strength": 1e6},
    ],
    ids=lambda table: table["name"],
)
def test_when_all_own_models_diverge_the_run_still_finishes(algorithm: dict[str, Any], tmp_path: Path) -> None:
    summary, told = told_by(tmp_path / "run", tiny.table(rounds=8, algorithm=algorithm, local={"epochs": 3}))
    assert summary["status"] == "finished"
    assert summary["diverged_clients"] == 4
    assert summary["personalized_accuracy"] is summary["personalized_accuracy_worst_decile"] is None
    assert summary["global_on_clients_accuracy"] > 0
    assert "personal models: none is finite" in told
    assert "the personal models of 4 of 4 clients diverged and are excluded from the means (client 0, 1, 2, 3)" in told
    for line in tiny.lines(tmp_path / "run" / "personalized.jsonl"):
        assert line["diverged"] is True
        assert line["accuracy"] is None
    assert (tmp_path / "run" / "personalized.svg").exists()


def test_compare_passes_over_own_models_that_diverged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told_by(tmp_path / "run", tiny.table(algorithm={"name": "fedavg", "plus": [{"name": "fine-tune", "lr": 1e28}]}))
    code, told, _ = tiny.call(capsys, "compare", tmp_path / "run", "--out", tmp_path / "both.svg")
    assert code == 0
    assert "own %" not in told


def test_one_diverged_client_is_left_out_of_the_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(personalized, {2}, monkeypatch)
    algorithm = {"name": "fedavg", "plus": [{"name": "fine-tune", "epochs": [1, 2]}]}
    summary, told = told_by(tmp_path / "run", tiny.table(algorithm=algorithm))
    lines = tiny.lines(tmp_path / "run" / "personalized.jsonl")
    assert [line["client"] for line in lines if line.get("diverged")] == [2]
    own = [line["accuracy_after_1"] for line in lines if line["client"] != 2]
    assert summary["personalized_accuracy_after_1"] == pytest.approx(sum(own) / 3)
    assert summary["diverged_clients"] == 1
    assert "of 1 of 4 clients diverged and are excluded from the means (client 2)" in told


def test_sound_models_are_not_mentioned(tmp_path: Path) -> None:
    summary, told = told_by(tmp_path / "run", tiny.table(rounds=1, algorithm={"name": "ditto"}))
    assert "diverged_clients" not in summary
    assert "diverged" not in told + (tmp_path / "run" / "personalized.jsonl").read_text()


@pytest.mark.parametrize("lost", [{1}, {0, 1, 2, 3, 4}], ids=["one", "all"])
def test_recognizers_that_diverged_are_named(lost: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(recognition, lost, monkeypatch)
    summary, told = told_by(tmp_path / "run", tiny.table(**RECOGNIZERS))
    lines = tiny.lines(tmp_path / "run" / "recognition.jsonl")
    assert {line["client"] for line in lines if line.get("diverged")} == lost
    assert summary["diverged_clients"] == len(lost)
    assert f"of {len(lost)} of 5 clients diverged" in told
    kept = [line["personal_auroc"] for line in lines if line["client"] not in lost]
    assert summary["personal_auroc_macro"] == (pytest.approx(sum(kept) / len(kept)) if kept else None)
    assert summary["global_auroc"] > 0


def test_recognizers_diverge_by_their_own_training(tmp_path: Path) -> None:
    algorithm = {"name": "fedavg", "plus": ["intra-subject", {"name": "fine-tune", "lr": 1e28, "epochs": 2}]}
    summary, _ = told_by(tmp_path / "run", tiny.table(**{**RECOGNIZERS, "algorithm": algorithm}))
    assert summary["diverged_clients"] == 5
    assert summary["personal_auroc"] is None


def test_the_global_model_is_written_before_the_last_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RunFailed("the last test failed")

    monkeypatch.setattr(execution, "run_final_tests", fails)
    with pytest.raises(RunFailed):
        run.run(tiny.table(rounds=1), out=tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").exists()
