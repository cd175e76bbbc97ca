"""Metrics, the best round and validation in a run: the same on every runner, and after a resumption."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from rich.console import Console
from sklearn.metrics import roc_auc_score

import fedra
import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.config import reading
from fedra.errors import ConfigError
from fedra.evaluation.classifier_metrics import Metric
from fedra.experiment.build import build
from fedra.experiment.execution import Interrupted

pytestmark = pytest.mark.usefixtures("without_curves")

ASKED = {"metrics": ["balanced-accuracy", "auroc", "log-loss", "per-class", "confusion"]}


def run(out: Path | None = None, metrics: Any = (), **sections: Any) -> tuple[Any, str]:
    shown = Console(file=io.StringIO(), width=200)
    result = fedra.run(tiny.table(**sections), out=out, metrics=metrics, console=shown)
    return result, shown.file.getvalue()  # type: ignore[attr-defined]


def metrics(result: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in result.metrics]


@pytest.fixture(scope="module")
def measured() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Curves, "on_run_end", Callback.on_run_end)
        return fedra.run(tiny.table(evaluation=ASKED))


def test_default_runs_have_the_keys_they_had() -> None:
    result, _ = run()
    assert set(result.metrics[0]) == {
        "round", "accuracy", "loss", "train_loss", "clients", "dropped", "bytes_up", "bytes_down", "seconds"
    }  # fmt: skip
    assert result.summary["final_accuracy"] == result.metrics[-1]["accuracy"]
    assert result.summary["best_accuracy"] == max(line["accuracy"] for line in result.metrics)
    assert result.summary["best_by"] == "accuracy"


def test_rounds_and_summary_have_what_was_asked_for(measured: Any) -> None:
    plain, _ = run()
    assert [line["accuracy"] for line in measured.metrics] == [line["accuracy"] for line in plain.metrics]
    last, summary = measured.metrics[-1], measured.summary
    assert last["log_loss"] == pytest.approx(last["loss"], rel=1e-5)
    assert "confusion" not in last
    assert summary["final_auroc"] == last["auroc"]
    assert summary["best_log_loss"] == min(line["log_loss"] for line in measured.metrics)
    assert sum(map(sum, summary["confusion"])) == 40
    assert np.trace(np.array(summary["confusion"])) / 40 == pytest.approx(last["accuracy"])
    recalls = [recall for recall in summary["per_class"]["recall"] if recall is not None]
    assert np.mean(recalls) == pytest.approx(last["balanced_accuracy"])
    assert len(summary["classes"]) == 4


@pytest.mark.parametrize("runner", ["processes", "stacked"])
def test_every_runner_gathers_the_same_scores(measured: Any, runner: str) -> None:
    found, _ = run(evaluation=ASKED, runner={"name": runner})
    for ours, theirs in zip(metrics(found), metrics(measured), strict=True):
        assert ours["auroc"] == pytest.approx(theirs["auroc"], abs=1e-6)
        assert ours["log_loss"] == pytest.approx(theirs["log_loss"], abs=1e-4)
    if runner == "processes":
        assert metrics(found) == metrics(measured)


def test_own_functions_are_measured_and_may_choose_the_best_round() -> None:
    def cost(targets: np.ndarray[Any, Any], given: np.ndarray[Any, Any]) -> float:
        return float(1 - given[np.arange(len(targets)), targets].mean())

    result, _ = run(metrics=[Metric("cost", cost, higher=False)], evaluation={"best": "cost"}, rounds=5)
    costs = [line["cost"] for line in result.metrics]
    assert result.summary["best_round"] == 1 + int(np.argmin(costs))
    assert result.summary["best_cost"] == min(costs)
    assert run(metrics={"mine": cost})[0].metrics[0]["mine"] == costs[0]


def test_the_best_round_is_chosen_by_the_named_metric_which_is_measured_for_it() -> None:
    result, _ = run(evaluation={"best": "log-loss"}, rounds=6, local={"lr": 0.5})
    losses = [line["log_loss"] for line in result.metrics]
    assert result.summary["best_round"] == 1 + int(np.argmin(losses))
    assert result.summary["best_by"] == "log-loss"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"metrics": ["aurok"]}, "there is no metric 'aurok'"),
        ({"best": "f2"}, "evaluation.best must be a metric of every round, got 'f2'"),
        ({"best": "confusion"}, "evaluation.best must be a metric of every round, got 'confusion'"),
    ],
)
def test_mistakes_are_found_before_training(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(evaluation=section)


def test_a_protocol_without_probabilities_refuses_metrics_of_a_classifier() -> None:
    faces = {"name": "synthetic-faces", "identities": 4, "images": 4, "size": 32, "test_identities": 4}
    model = {"name": "mobilefacenet-tiny", "embedding": 8}
    for name, value in (("metrics", ["f1"]), ("validation", 0.1), ("per_client", True)):
        with pytest.raises(ConfigError, match=f"evaluation.{name} needs evaluation.protocol = 'classification'"):
            build(reading.read(tiny.table(data=faces, model=model, evaluation={name: value})))


# One class for everything.


def test_a_model_that_answers_one_class_is_pointed_out(tmp_path: Path) -> None:
    biased = {name: value.clone() for name, value in run()[0].model.state_dict().items()}
    biased["head.bias"][2] += 100.0
    safetensors.torch.save_file(biased, tmp_path / "biased.safetensors")
    model = {**tiny.TINY["model"], "weights": str(tmp_path / "biased.safetensors")}
    result, told = run(rounds=1, local={"lr": 1e-6}, model=model)
    assert result.metrics[-1]["only_class"] == 2
    assert "the model predicts class 'class 2' for every test example" in told
    learned, told = run(rounds=3)
    assert "only_class" not in learned.metrics[-1]
    assert "for every test example" not in told


# Validation.


def test_rounds_are_tested_on_validation_and_the_test_set_once(tmp_path: Path) -> None:
    section = {"validation": 0.3, "best": "log-loss", "metrics": ["auroc"]}
    result, told = run(out=tmp_path / "run", evaluation=section, rounds=5, local={"lr": 0.5})
    plain, _ = run(rounds=5, local={"lr": 0.5})
    summary = result.summary
    assert summary["rounds_tested_on"] == "validation"
    assert 15 <= summary["validation_examples"] <= 40
    lines = [line["examples"] for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if line["round"] == 1]
    assert sum(lines) + summary["validation_examples"] == 90
    assert [line["loss"] for line in result.metrics] != [line["loss"] for line in plain.metrics]
    best = summary["best_round"]
    assert best == 1 + int(np.argmin([line["log_loss"] for line in result.metrics]))
    assert f"model of round {best}, the best on validation by log-loss" in told
    # The last round's figures are those of the model that was saved, on the test set; so are the best round's.
    for key, file in (("test", "model"), ("best_test", "model-best")):
        expected = auroc_on_test(tmp_path / "run" / f"{file}.safetensors", section)
        assert summary[f"{key}_auroc"] == pytest.approx(expected, abs=1e-6)


def auroc_on_test(file: Path, section: dict[str, Any]) -> float:
    built = build(reading.read(tiny.table(evaluation=section)))
    module = built.job.model.module
    module.load_state_dict(safetensors.torch.load_file(file))
    assert built.job.test is not None
    inputs = built.job.test.transform.prepare(built.job.test.inputs)
    given = module.head(module.body(inputs)).softmax(dim=1).detach().numpy()
    truth = built.job.test.targets.numpy()
    return float(np.mean([roc_auc_score(truth == label, given[:, label]) for label in np.unique(truth)]))


class StopAfter(Callback):
    """A user who loses patience."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_round_end(self, run: Any, report: Any) -> None:
        if report.metrics["round"] == self.round:
            raise KeyboardInterrupt


def test_a_resumed_run_has_the_best_model_of_before(tmp_path: Path) -> None:
    section = {"validation": 0.3}
    whole, _ = run(out=tmp_path / "whole", evaluation=section, rounds=6, local={"lr": 0.5})
    halted = tmp_path / "halted"
    table = tiny.table(evaluation=section, rounds=6, local={"lr": 0.5})
    with pytest.raises(Interrupted):
        fedra.run(table, out=halted, callbacks=[StopAfter(4)])
    resumed = fedra.resume(halted)
    for key in ("best_round", "test_accuracy", "best_test_accuracy", "best_accuracy"):
        assert resumed.summary[key] == whole.summary[key]
    best = [(folder / "model-best.safetensors").read_bytes() for folder in (tmp_path / "whole", halted)]
    assert best[0] == best[1]


def test_centralized_training_may_hold_out_examples_too() -> None:
    result, _ = run(evaluation={"validation": 0.3}, mode="centralized")
    assert result.summary["rounds_tested_on"] == "validation"
    assert result.summary["test_accuracy"] is not None


# Clients.


def test_every_client_is_tested_by_every_metric(tmp_path: Path) -> None:
    result, _ = run(out=tmp_path / "run", evaluation={"per_client": True, "metrics": ["f1", "log-loss"]})
    lines = tiny.lines(tmp_path / "run" / "client-tests.jsonl")
    assert [line["client"] for line in lines] == [0, 1, 2, 3]
    assert np.mean([line["f1"] for line in lines]) == pytest.approx(result.summary["global_on_clients_f1"])
    worst = result.summary["global_on_clients_log_loss_worst_decile"]
    assert worst == pytest.approx(np.quantile([line["log_loss"] for line in lines], 0.9))


@pytest.mark.parametrize("name", ["fedavg", "knn-per", "fedper", "fedpe"])
def test_own_models_are_measured_by_every_metric(tmp_path: Path, name: str) -> None:
    algorithm: dict[str, Any] = {"name": name}
    algorithm |= {"plus": [{"name": "fine-tune", "epochs": [1, 2]}]} if name in ("fedavg", "fedpe") else {}
    partition = {"name": "identity", "clients": 2} if name == "fedpe" else tiny.TINY["partition"]
    section = {"metrics": ["auroc", "log-loss"]}
    result, told = run(out=tmp_path / "run", algorithm=algorithm, partition=partition, evaluation=section)
    lines = tiny.lines(tmp_path / "run" / "personalized.jsonl")
    for key in ("auroc", "log_loss", "global_auroc", "global_log_loss"):
        assert all(key in line for line in lines)
    mean = np.mean([line["log_loss"] for line in lines])
    assert result.summary["personalized_log_loss"] == pytest.approx(mean)
    assert "log-loss of personal models" in told


# The user's own objects.


def test_simulate_measures_holds_out_and_reads_data_sets_anew() -> None:
    draw = torch.Generator().manual_seed(0)
    targets = torch.arange(80) % 2
    inputs = torch.randn(80, 3, generator=draw) + targets[:, None]
    clients: list[Any] = [(inputs[:20], targets[:20]), Listed(inputs[20:40], targets[20:40])]
    clients.append((inputs[40:60], targets[40:60], lambda batch: batch + 0.0))

    def share(truth: np.ndarray[Any, Any], given: np.ndarray[Any, Any]) -> float:
        return float(given[:, 1].mean())

    result = fedra.simulate(
        fedra.algorithms.fedavg(),
        torch.nn.Linear(3, 2),
        clients,
        (inputs[60:], targets[60:]),
        rounds=3,
        lr=0.1,
        metrics=["auroc", share],
        evaluation={"validation": 0.25, "best": "share"},
    )
    assert 9 <= result.summary["validation_examples"] <= 18
    assert all(0 < line["share"] < 1 for line in result.metrics)
    assert result.summary["best_round"] == 1 + int(np.argmax([line["share"] for line in result.metrics]))
    with torch.no_grad():
        given = result.model(inputs[60:]).softmax(dim=1)[:, 1].numpy()
    assert result.summary["test_auroc"] == pytest.approx(roc_auc_score(targets[60:].numpy(), given))


class Listed(torch.utils.data.Dataset[Any]):
    """A data set that is read by its rows."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return self.inputs[row], int(self.targets[row])
