"""How the server's model is tested after a round: by counting right answers, or by telling pairs of strangers apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedra
import tiny
from fedra.config.schema import Config
from fedra.core.batches import AsIs
from fedra.data.dataset import Dataset, Pairs, Split
from fedra.errors import ConfigError, RunFailed
from fedra.experiment.build import build
from fedra.experiment.evaluators.evaluator import choose_protocol
from fedra.experiment.evaluators.verification_evaluator import VerificationEvaluator
from fedra.faces.metrics import verify
from fedra.storage.trained_model import load_embedder

FACES = {"name": "synthetic-faces", "identities": 6, "images": 6, "size": 32, "test_identities": 6}
# At a higher rate all cosines are above 0.999, and whatever is verified is right in half of the pairs.
MODEL = {"name": "mobilefacenet-tiny", "embedding": 8, "norm": "group"}
LOCAL = {"batch": 10, "lr": 0.01}


@pytest.fixture(autouse=True)
def _own_data(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, without_curves: None) -> None:
    monkeypatch.setenv("FEDRA_DATA", str(tmp_path_factory.getbasetemp() / "judged-data"))


def config(**sections: Any) -> dict[str, Any]:
    usual = {"data": FACES, "model": MODEL, "local": LOCAL, "rounds": 1, "partition": {"name": "iid", "clients": 2}}
    return tiny.table(**usual | sections)


def some_pairs(rows: int) -> Pairs:
    first = torch.arange(rows)
    return Pairs(first, first.roll(1), first % 2 == 0, torch.zeros(rows, dtype=torch.int64))


def vectors(targets: list[int], pairs: Pairs | None) -> Dataset:
    labels = torch.tensor(targets)
    split = Split(torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(0)), labels)
    return Dataset("vectors", split, split, ("a", "b"), pairs=pairs)


def test_a_run_on_strangers_is_verified_as_its_embedder_says(tmp_path: Path) -> None:
    result = fedra.run(config(), out=tmp_path / "run")
    dataset = build(Config.model_validate(config())).dataset
    pairs = dataset.pairs
    assert pairs is not None
    features = load_embedder(tmp_path / "run")(dataset.test.inputs)
    found = verify(features[pairs.first], features[pairs.second], pairs.same)
    (line,) = result.metrics
    assert abs(line["accuracy"] - 0.5) > 0.03, "a run whose accuracy is that of any constant shows nothing"
    assert line["accuracy"] == pytest.approx(found.accuracy, abs=0.02)  # batches of another size, other last bits
    assert line["loss"] is None
    assert 0 <= line["auroc"] <= 1
    assert result.summary["protocol"] == "verification"
    assert tiny.metrics(tmp_path / "run")[0]["auroc"] == line["auroc"]


def test_right_answers_are_counted_on_known_people_where_asked_for() -> None:
    result = fedra.run(config(evaluation={"protocol": "classification"}))
    assert result.metrics[0]["loss"] > 0
    assert "auroc" not in result.metrics[0]
    assert result.summary["protocol"] == "classification"


def test_every_so_many_rounds_are_verified() -> None:
    result = fedra.run(config(rounds=3, evaluation={"every": 2}))
    assert [line["accuracy"] is None for line in result.metrics] == [True, False, False]


def test_owned_class_embeddings_are_verified() -> None:
    result = fedra.run(config(algorithm={"name": "fedpe"}, partition={"name": "identity", "clients": 2}))
    assert result.summary["protocol"] == "verification"
    assert result.metrics[0]["accuracy"] is not None


@pytest.mark.parametrize(
    ("targets", "paired", "expected"),
    [
        ([0, 1, 0, 1], False, "classification"),
        ([0, 1, 0, 1], True, "classification"),
        ([0, 1, 2, 3], True, "classification"),
        ([2, 2, 3, 3], True, "verification"),
    ],
)
def test_auto_verifies_where_all_pairs_are_strangers(targets: list[int], paired: bool, expected: str) -> None:
    assert choose_protocol("auto", vectors(targets, some_pairs(4) if paired else None)) == expected


def test_the_judge_looks_at_the_images_of_pairs_alone() -> None:
    dataset = vectors([2, 3] * 15, some_pairs(30))
    one = VerificationEvaluator(dataset, AsIs())
    assert len(one._images) == 30
    features = dataset.test.inputs.clone()
    features[::2] = features[torch.arange(30).roll(1)[::2]]  # now every genuine pair, and it alone, is equal
    assert one.metrics(features) == {"accuracy": 1.0, "loss": None, "auroc": 1.0}
    fewer = replace(some_pairs(30), first=torch.zeros(30, dtype=torch.int64), second=torch.ones(30, dtype=torch.int64))
    assert len(VerificationEvaluator(replace(dataset, pairs=fewer), AsIs())._images) == 2


def test_a_broken_model_ends_the_run_with_a_sentence() -> None:
    evaluator = VerificationEvaluator(vectors([2, 3] * 15, some_pairs(30)), AsIs())
    with pytest.raises(RunFailed, match=r"cannot be verified: the first embeddings: row 0 contains NaN"):
        evaluator.metrics(torch.full((30, 4), torch.nan))


def test_images_without_features_are_unlike_all_others_and_counted() -> None:
    dataset = vectors([2, 3] * 15, some_pairs(30))
    features = dataset.test.inputs.clone()
    features[::2] = features[torch.arange(30).roll(1)[::2]]
    features[4] = 0
    found = VerificationEvaluator(dataset, AsIs()).metrics(features)
    assert found["zero_embeddings"] == 1
    assert 0.9 < found["accuracy"] < 1  # its genuine pair is lost


def test_mistakes_are_told() -> None:
    with pytest.raises(ConfigError, match=r"'verification' needs pairs, got none in the data set 'synthetic'"):
        fedra.run(tiny.table(evaluation={"protocol": "verification"}))
    strangers = {**FACES, "test_fraction": 0.0}
    with pytest.raises(ConfigError, match=r"'classification' needs test images of the training classes"):
        fedra.run(config(data=strangers, evaluation={"protocol": "classification"}))
    with pytest.raises(
        ConfigError, match=r"diagnostics\.classes needs evaluation\.protocol = 'classification', got 'verification'"
    ):
        fedra.run(config(diagnostics={"classes": True}))
    with pytest.raises(ConfigError, match=r"the part 'fine-tune' needs test images of the training classes"):
        fedra.run(config(data=strangers, algorithm={"name": "fedbabu"}))
