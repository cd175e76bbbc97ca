"""Clients that fail, and runs that must stop: who is left out, why, and what the record says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import fedra
import tiny
from fedra.algorithms import ALGORITHMS, ENTRIES, fedavg, register
from fedra.config.reading import read
from fedra.core.algorithm import Algorithm
from fedra.core.model import Output
from fedra.core.part import GradientFunction, GradientRule, Term
from fedra.core.tree import Params
from fedra.core.uploads import Uploads
from fedra.core.view import Upload, View
from fedra.errors import RunError
from fedra.experiment import plan
from fedra.experiment import rounds as training
from fedra.experiment.build import build
from fedra.experiment.cohort import Expected, FaultRule, Form, rejection_reasons
from fedra.runners.base import Result
from fedra.runners.sequential import SequentialRunner
from fedra.storage.checkpoint import load_model
from fedra.storage.state import State
from tiny import mistake

pytestmark = pytest.mark.usefixtures("without_curves")


@dataclass(frozen=True)
class ToyPoison(GradientRule):
    """A gradient that is not a number for clients with fewer than `below` examples; the loss stays finite."""

    below: int = 0
    formula: ClassVar[str] = "g -> nan"

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        slope = inner(params)
        return {n: v * torch.nan for n, v in slope.items()} if view.client.examples < self.below else slope


@dataclass(frozen=True)
class ToyBadLoss(Term):
    """A loss that is infinite for the smallest clients."""

    below: int = 0
    formula: ClassVar[str] = "inf"

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return output.logits.sum() * (torch.inf if view.client.examples < self.below else 0.0)


def toy_poison(*, below: int = 0) -> Algorithm:
    """FedAvg with poisoned clients."""
    return fedavg().plus(ToyPoison(below))


def toy_bad_loss(*, below: int = 0) -> Algorithm:
    """FedAvg with clients whose loss overflows."""
    return fedavg().plus(ToyBadLoss(below))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register("toy-poison", toy_poison)
    register("toy-bad-loss", toy_bad_loss)
    yield
    for name in ("toy-poison", "toy-bad-loss"):
        del ENTRIES[name]
        del ALGORITHMS._functions[name]


SIZES = {0: 19, 1: 14, 2: 14, 3: 43}


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        ("toy-poison", "its update was not finite"),
        ("toy-bad-loss", "its loss was not finite at local step 0 in toy-bad-loss"),
    ],
)
def test_a_broken_update_is_left_out(tmp_path: Path, algorithm: str, reason: str) -> None:
    config = tiny.table(algorithm={"name": algorithm, "below": 15}, local={"batch": 0})
    fedra.run(config, out=tmp_path / "broken")
    clients = tiny.lines(tmp_path / "broken" / "clients.jsonl")
    for line in clients:
        assert SIZES[line["client"]] == line["examples"]
        assert line.get("dropped") == (reason if line["examples"] < 15 else None)
        if "dropped" in line and algorithm == "toy-poison":
            assert line["update_norm"] is None
    for line in tiny.metrics(tmp_path / "broken"):
        assert (line["clients"], line["dropped"]) == (2, 2)
        assert line["accuracy"] is not None
    model, _ = load_model(tmp_path / "broken" / "model.safetensors")
    assert all(value.isfinite().all() for value in model.values())


def test_a_left_out_client_leaves_no_trace(tmp_path: Path) -> None:
    """The run equals one of the good clients alone, memory included."""
    config = tiny.table(algorithm={"name": "toy-poison", "below": 15, "plus": ["moon"]})
    fedra.run(config, out=tmp_path)
    manifest = json.loads((tmp_path / "checkpoint" / "manifest.json").read_text())
    assert set(manifest["clients"]) == {"0", "3"}


class Meddling(SequentialRunner):
    """Changes what client 1 sends."""

    def train(self, *words: Any) -> Iterator[Result]:
        for result in super().train(*words):
            yield self.meddle(result) if result.client == 1 else result

    def meddle(self, result: Result) -> Result:
        delta = {**result.upload.delta, "head.bias": torch.zeros(5)}
        return result._replace(upload=replace(result.upload, delta=delta))


def test_a_wrong_shape_is_refused() -> None:
    built = build(read(tiny.TINY))
    state = State.fresh(built.job)
    report = next(iter(training.rounds(built.job, Meddling(built.job, 1), plan.Plan(1), state)))
    refused = {line["client"]: line["dropped"] for line in report.clients if "dropped" in line}
    assert refused == {1: "sent 'head.bias' with shape (5,) instead of (4,)"}
    assert report.metrics["clients"] == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"delta": {"neck": torch.zeros(1)}}, "sent the unknown parameter 'neck'"),
        ({"delta": {"head": torch.zeros(3)}}, "sent 'head' with shape (3,) instead of (2,)"),
        ({"delta": {"head": torch.tensor([1.0, torch.nan])}}, "its update was not finite"),
        ({"buffers": {"running_var": torch.tensor([torch.inf])}}, "its update was not finite"),
        ({"extras": {"part": {"c": torch.tensor([torch.nan])}}}, "its update was not finite"),
        ({"extras": {"part": {"c": torch.tensor([3])}}}, "sent 'part|c' as int64 instead of float32"),
        ({"delta": {"head": torch.ones(2).half()}}, "sent 'head' as float16 instead of float32"),
        ({"examples": 10**9}, "sent 1000000000 examples instead of 5"),
        ({"examples": -320}, "sent -320 examples instead of 5"),
        ({"steps": 0}, "sent 0 local steps (effectively 1) instead of at least 1"),
        ({"effective_steps": math.nan}, "sent 1 local steps (effectively nan) instead of at least 1"),
        ({"delta": {}}, "did not send the parameter 'head'"),
        ({"buffers": {"running_var": torch.ones(2)}}, "sent 'running_var' with shape (2,) instead of (1,)"),
        ({"extras": {"part": {"c": torch.ones(())}}}, "sent 'part|c' with shape () instead of (1,)"),
        ({"extras": {"other": {"c": torch.ones(1)}}}, "sent the unknown extra 'other|c'"),
        ({"extras": {}}, "did not send the extra 'part|c'"),
        (
            {
                "broken_step": 2,
                "metrics": {"train_loss": 1.0, "train_loss/cross-entropy": 1.0, "train_loss/margin-softmax": math.inf},
            },
            "its loss was not finite at local step 2 in margin-softmax",
        ),
        ({"broken_step": 4, "metrics": {"train_loss": 1.0}}, "its loss was not finite at local step 4"),
        ({"buffers": {"running_var": torch.tensor([-1.0])}}, "sent 'running_var' with the negative value -1"),
        ({"metrics": {}}, "did not send the figure 'train_loss'"),
        ({"metrics": {"train_loss": "low"}}, "sent the figure 'train_loss' as str instead of a number"),
        (
            {"metrics": {"train_loss": 1.0, "\x1b[2Jall": 1.0}},
            r"sent a figure named '\x1b[2Jall', which is not a plain name",
        ),
        (
            {"metrics": {"train_loss": 1.0, "x" * 101: 1.0}},
            f"sent a figure named '{'x' * 40}', which is not a plain name",
        ),
        ({}, None),
    ],
)
def test_refusals(change: dict[str, Any], told: str | None) -> None:
    good = Upload(
        delta={"head": torch.ones(2)},
        buffers={"running_var": torch.ones(1)},
        examples=5,
        steps=1,
        effective_steps=1.0,
        extras={"part": {"c": torch.ones(1)}},
        metrics={"train_loss": 1.0},
    )
    groups = ({"head": torch.ones(2)}, {"running_var": torch.ones(1)}, {"part|c": torch.ones(1)})
    expected = Expected(*({name: Form.of(value) for name, value in group.items()} for group in groups))
    assert rejection_reasons(Uploads.of(replace(good, **change)), expected, [range(5, 6)]) == [told]


def test_a_diverged_run_stops_with_its_cause(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")
    out = tmp_path / "out"
    told = mistake(capsys, "run", tmp_path / "c.toml", *tiny.WORDS, "local.lr=1e6", "rounds=9", "--out", out, code=1)
    assert told.startswith("the run diverged in round ")
    assert ", client " in told
    assert "was not finite" in told
    assert "lower local.lr" in told
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["failure"] == told
    assert summary["chance_accuracy"] == 0.25
    assert summary["rounds"] == len(
        (out / "metrics.jsonl").read_text().splitlines() if (out / "metrics.jsonl").exists() else []
    )
    ending = told.removeprefix("the run ").partition(",")[0]
    assert summary["ending"] == ending
    assert f"{ending}: nothing is left to resume" in mistake(capsys, "run", "--resume", out)
    assert f"{ending}: choose another folder" in mistake(capsys, "run", tmp_path / "c.toml", *tiny.WORDS, "--out", out)


def test_a_diverging_server_is_told_apart() -> None:
    config = tiny.table(algorithm={"name": "fedavgm", "lr": 1e28}, rounds=9)
    with pytest.raises(RunError, match=r"the run diverged in round \d"):
        fedra.run(config)


def test_dropout_and_deadline_are_recorded(tmp_path: Path) -> None:
    faults = {"dropout": 0.3, "straggler": 0.4, "slowdown": 10.0, "deadline": 4.0, "quorum": 0.2}
    fedra.run(tiny.table(rounds=12, faults=faults), out=tmp_path)
    clients = tiny.lines(tmp_path / "clients.jsonl")
    reasons = [line["dropped"] for line in clients if "dropped" in line]
    assert reasons.count("dropped out") >= 5
    late = [reason for reason in reasons if reason.startswith("missed the deadline")]
    assert len(late) >= 5
    assert all("> 4 times the median client's time" in reason for reason in late)
    for line in tiny.metrics(tmp_path):
        own = [client for client in clients if client["round"] == line["round"]]
        assert line["dropped"] == sum("dropped" in client for client in own)
        assert line["clients"] + line["dropped"] == len(own)
        assert line["bytes_down"] == len(own) * 4 * 92  # the lost ones had received the model too


def test_a_deadline_leaves_out_the_large(tmp_path: Path) -> None:
    """Steps are 2, 2, 2 and 5: the median client takes 2."""
    fedra.run(tiny.table(faults={"deadline": 2.4}), out=tmp_path)
    late = {line["client"]: line["dropped"] for line in tiny.lines(tmp_path / "clients.jsonl") if "dropped" in line}
    assert late == {3: "missed the deadline: 2.5 > 2.4 times the median client's time"}


def test_faults_depend_on_the_seed_alone() -> None:
    built = build(read(tiny.TINY))
    rule = FaultRule(dropout=0.5)
    first = [rule.absent([0, 1, 2, 3], built.job, 5, attempt) for attempt in range(6)]
    assert first == [rule.absent([3, 1, 0, 2], built.job, 5, attempt) for attempt in range(6)]
    assert len({tuple(sorted(absent)) for absent in first}) > 1
    assert FaultRule().absent([0, 1], built.job, 0, 0) == {}
    assert len(FaultRule(dropout=1.0).absent([0, 1], built.job, 0, 0)) == 2


@pytest.mark.parametrize(
    ("quorum", "answers", "enough"),
    [(0.5, 2, True), (0.5, 1, False), (0, 0, False), (0, 1, True), (1, 4, True), (1, 3, False)],
)
def test_quorum(quorum: float, answers: int, enough: bool) -> None:
    assert FaultRule(quorum=quorum).enough(answers, 4) is enough


def test_a_round_under_quorum_is_repeated(tmp_path: Path) -> None:
    faults = {"dropout": 0.5, "quorum": 0.9, "retries": 100}
    fedra.run(tiny.table(rounds=2, faults=faults, diagnostics={"divergence": True}), out=tmp_path)
    clients = tiny.lines(tmp_path / "clients.jsonl")
    repeated = [line for line in clients if line.get("dropped", "").startswith("its round was repeated")]
    assert repeated, "nobody answered in a try that failed: choose another seed"
    for line in tiny.metrics(tmp_path):
        own = [client for client in clients if client["round"] == line["round"]]
        last = max(client.get("attempt", 1) for client in own)
        taken = [client for client in own if "dropped" not in client]
        assert last > 1
        assert {client["attempt"] for client in taken} == {last}
        assert line["clients"] == len(taken) == 4
        assert line["dropped"] == len(own) - 4
        norms = [client["update_norm"] for client in taken]
        assert line["global_local_distance"] == pytest.approx(sum(norms) / 4)  # of the last try alone


def test_a_run_that_never_reaches_its_quorum_stops(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        fedra.run(tiny.table(faults={"dropout": 1.0, "retries": 2}), out=tmp_path)
    told = str(caught.value)
    assert told.startswith("round 1 did not reach its quorum of 50% in 3 attempts (12 clients lost, client ")
    assert "dropped out" in told
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"


def test_retries_zero_stop_at_once() -> None:
    with pytest.raises(RunError, match="in 1 attempts"):
        fedra.run(tiny.table(faults={"dropout": 1.0, "retries": 0}))
