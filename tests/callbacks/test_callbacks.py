"""Callbacks: when hooks are called, what they may do, and what an error in one costs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedra
import tiny
from fedra.algorithms import fedavg
from fedra.callbacks import Callback, CSVLog, EarlyStopping, RoundReport, RunContext, TensorBoard
from fedra.callbacks.callback import CallbackFailed
from fedra.errors import ConfigError


class Diary(Callback):
    """Notes every call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_run_start(self, run: RunContext) -> None:
        self.calls.append(("run", run.round, run.title))

    def on_round_start(self, run: RunContext, round: int) -> None:
        self.calls.append(("round", round))

    def on_client_end(self, run: RunContext, line: dict[str, Any]) -> None:
        self.calls.append(("client", line["round"], line["client"]))

    def on_evaluation(self, run: RunContext, metrics: dict[str, Any]) -> None:
        self.calls.append(("tested", metrics["round"]))

    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        self.calls.append(("ended", report.metrics["round"], run.round))

    def on_training_end(self, run: RunContext) -> None:
        self.calls.append(("trained", run.round))

    def on_run_end(self, run: RunContext, summary: dict[str, Any]) -> None:
        self.calls.append(("finished", summary["status"], len(run.metrics)))


def test_the_hooks_in_their_order() -> None:
    diary = Diary()
    fedra.run(tiny.table(rounds=2, evaluation={"every": 2}), callbacks=[diary])
    clients = [[call for call in diary.calls if call[:2] == ("client", round)] for round in (1, 2)]
    assert [len(each) for each in clients] == [4, 4]
    assert [call for call in diary.calls if call[0] != "client"] == [
        ("run", 0, "fedavg"),
        ("round", 1), ("ended", 1, 1),
        ("round", 2), ("tested", 2), ("ended", 2, 2),
        ("trained", 2), ("finished", "finished", 2),
    ]  # fmt: skip


class Raises(Callback):
    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        if report.metrics["round"] == 2:
            raise ValueError("no room")


@pytest.mark.parametrize("runner", ["sequential", "processes"])
def test_a_callback_that_raises_ends_the_run_by_name_and_nothing_is_lost(tmp_path: Path, runner: str) -> None:
    config = tiny.table(rounds=4, runner={"name": runner}, checkpoint={"seconds": 1e9})
    whole = fedra.run(config)
    diary = Diary()
    with pytest.raises(
        CallbackFailed, match=r"Raises failed in on_round_end after round 2 \(ValueError: no room\)"
    ) as info:
        fedra.run(config, out=tmp_path / "a", callbacks=[diary, Raises()])
    assert "saved up to round 2; continue with: fedra run --resume" in str(info.value)
    assert diary.calls[-1] == ("finished", "interrupted", 2)
    resumed = fedra.resume(tmp_path / "a")
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
    assert [line["round"] for line in tiny.metrics(tmp_path / "a")] == [1, 2, 3, 4]


def test_a_run_without_a_folder_does_not_claim_to_be_saved() -> None:
    with pytest.raises(CallbackFailed, match="nothing was saved, because the run has no folder: set out"):
        fedra.run(tiny.table(rounds=2), callbacks=[Raises()])


class EvaluatesNothing(Callback):
    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        fedra.evaluate("nowhere")


def test_an_error_of_fedra_within_a_callback_is_named_and_saved_too(tmp_path: Path) -> None:
    with pytest.raises(CallbackFailed, match=r"EvaluatesNothing failed in on_round_end after round 1 \(\w+Error"):
        fedra.run(tiny.table(rounds=2, checkpoint={"seconds": 1e9}), out=tmp_path / "a", callbacks=[EvaluatesNothing()])
    assert [line["round"] for line in tiny.metrics(tmp_path / "a")] == [1]
    assert len(fedra.resume(tmp_path / "a").metrics) == 2


def test_a_run_of_own_objects_says_how_python_continues_it(tmp_path: Path) -> None:
    """No command can: the objects are in the program."""
    clients = [(torch.randn(6, 4), torch.arange(6) % 2)]
    arguments = (fedra.algorithms.fedavg(), torch.nn.Linear(4, 2), clients)
    with pytest.raises(CallbackFailed, match=r"continue with: the same call with out='.*a' and resume=True"):
        fedra.simulate(*arguments, rounds=3, out=tmp_path / "a", callbacks=[Raises()])
    with pytest.raises(ConfigError, match=r"can be resumed \(the same call with out='.*a' and resume=True\)"):
        fedra.simulate(*arguments, rounds=3, out=tmp_path / "a")
    assert len(fedra.simulate(*arguments, rounds=3, out=tmp_path / "a", resume=True).metrics) == 3


class Stops(Callback):
    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        if report.metrics["round"] == 2:
            run.stop("enough")


def test_a_callback_may_end_the_run(tmp_path: Path) -> None:
    result = fedra.run(tiny.table(rounds=9), out=tmp_path, callbacks=[Stops()])
    assert (result.summary["status"], result.summary["stopped_early"]) == ("finished", "enough")
    assert len(result.metrics) == result.summary["rounds"] == 2
    with pytest.raises(ConfigError, match="nothing is left to resume"):
        fedra.resume(tmp_path)


def constant(rounds: int = 9, **settings: Any) -> fedra.RunResult:
    """A run whose accuracy never moves: its rate is next to nothing."""
    inputs, targets = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    clients = [(inputs[k::2], targets[k::2]) for k in range(2)]
    return fedra.simulate(fedavg(), nn.Linear(3, 2), clients, clients[0], rounds=rounds, lr=1e-12, **settings)


def test_early_stopping_counts_tested_rounds_without_improvement() -> None:
    result = constant(callbacks=[EarlyStopping(patience=3)])
    assert len(result.metrics) == 4
    assert result.summary["stopped_early"].startswith("accuracy has not improved for 3 evaluated rounds")
    assert len(constant(12, callbacks=[EarlyStopping(patience=3)], evaluate_every=2).metrics) == 8
    assert len(constant(3, callbacks=[EarlyStopping(patience=3)]).metrics) == 3


def test_early_stopping_goes_down_for_losses_and_names_metrics() -> None:
    grows = [{"round": k, "accuracy": 0.5, "loss": 1.0 + k} for k in range(4)]
    run = RunContext("", {}, fedavg(), 9, grows, state=None)  # type: ignore[arg-type]
    EarlyStopping("loss", patience=3).on_evaluation(run, grows[-1])
    assert run.stop_reason == "loss has not improved for 3 evaluated rounds (best 1)"
    with pytest.raises(ConfigError, match=r"the metric of EarlyStopping must be one of accuracy, loss.*, got 'f1'"):
        EarlyStopping("f1").on_evaluation(run, grows[-1])
    with pytest.raises(ConfigError, match="patience must be at least 1, got 0"):
        EarlyStopping(patience=0)


def test_collapsed_rounds_are_tests_that_did_not_improve() -> None:
    lost: dict[str, Any] = {"accuracy": None, "auroc": None, "collapsed": "all 5 embeddings are zero"}
    lines = [{"round": 1, "accuracy": 0.6, "auroc": 0.6}, {"round": 2, **lost}, {"round": 3, **lost}]
    run = RunContext("", {}, fedavg(), 9, lines, state=None)  # type: ignore[arg-type]
    EarlyStopping("auroc", patience=2).on_evaluation(run, lines[-1])
    assert run.stop_reason == "auroc has not improved for 2 evaluated rounds (best 0.6)"


def test_early_stopping_survives_a_resume(tmp_path: Path) -> None:
    with pytest.raises(CallbackFailed):
        constant(callbacks=[EarlyStopping(patience=3), Raises()], out=tmp_path)
    assert len(constant(callbacks=[EarlyStopping(patience=3)], out=tmp_path, resume=True).metrics) == 4


def test_rows_of_a_csv_file(tmp_path: Path) -> None:
    result = fedra.run(tiny.table(), out=tmp_path / "a", callbacks=[CSVLog(), CSVLog(tmp_path / "b" / "log.csv")])
    for path in (tmp_path / "a" / "metrics.csv", tmp_path / "b" / "log.csv"):
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert [(int(row["round"]), float(row["accuracy"])) for row in rows] == [
            (line["round"], line["accuracy"]) for line in result.metrics
        ]
    with pytest.raises(ConfigError, match="CSVLog must have a path"):
        fedra.run(tiny.table(), callbacks=[CSVLog()])


def test_tensorboard_from_python(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    fedra.run(tiny.table(), callbacks=[TensorBoard(tmp_path / "events")])
    assert list((tmp_path / "events").glob("events.*"))


class Duck:
    """No base class: any object with hooks will do."""

    rounds = 0

    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        Duck.rounds += 1


def test_any_object_with_hooks_will_do() -> None:
    fedra.run(tiny.table(rounds=2), callbacks=[Duck()])  # type: ignore[list-item]
    assert Duck.rounds == 2
