"""Centralized runs: one override on a federation's configuration, and a record like any other's."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fedra
import tiny
import toy
from fedra.config.mode import notice, title
from fedra.config.reading import read
from fedra.config.schema import Config
from fedra.data.augment import Transform
from fedra.data.clients import PooledClients
from fedra.errors import ConfigError
from fedra.experiment import run as experiment
from fedra.experiment.sweep import sweep
from fedra.losses import ArcFace
from fedra.reports.comparison import titles
from fedra.storage.run_folder import RunFolder
from tiny import call, mistake

RUNNER = {"name": "auto", "threads": 1}
MOMENTUM = {"batch": 10, "lr": 0.1, "momentum": 0.9, "schedule": {"name": "cosine", "warmup": 1}}
CONFIG = tiny.table(mode="centralized", runner=RUNNER, algorithm={"name": "fedarc"}, local=MOMENTUM, rounds=4)
pytestmark = pytest.mark.usefixtures("without_curves")


def lines(config: dict[str, Any]) -> list[str]:
    """What the run tells beside its rounds."""
    screen = io.StringIO()
    fedra.run(config, console=Console(file=screen, width=300))
    return [line for line in screen.getvalue().splitlines() if "round " not in line or "one round is" in line]


def test_a_round_is_an_epoch_over_everything(tmp_path: Path) -> None:
    fedra.run(CONFIG, out=tmp_path)
    rounds, clients = tiny.metrics(tmp_path), tiny.lines(tmp_path / "clients.jsonl")
    assert [line["round"] for line in rounds] == [1, 2, 3, 4]
    assert [(line["client"], line["examples"], line["steps"]) for line in clients] == [(0, 90, 9)] * 4
    assert {line["clients"] for line in rounds} == {1}
    assert {(line["bytes_up"], line["bytes_down"]) for line in rounds} == {(0, 0)}
    assert rounds[-1]["train_loss"] < rounds[0]["train_loss"]
    assert all(0 <= line["accuracy"] <= 1 for line in rounds)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["clients"], summary["bytes_up"], summary["runner"]["name"]) == (1, 0, "centralized")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str) -> None:
    from fedra.storage.checkpoint import Checkpoint

    config = tiny.table(**{**CONFIG, "local": {**MOMENTUM, "optimizer": optimizer}})
    fedra.run(config, out=tmp_path / "whole")
    real = Checkpoint.save

    def save(self: Checkpoint, state: Any, *rest: Any) -> None:
        real(self, state, *rest)
        if state.round == 2:
            raise InterruptedError

    monkeypatch.setattr(Checkpoint, "save", save)
    with pytest.raises(InterruptedError):
        fedra.run(config, out=tmp_path / "cut")
    monkeypatch.undo()
    assert len(tiny.metrics(tmp_path / "cut")) == 2
    experiment.resume(tmp_path / "cut")
    assert tiny.record(tmp_path / "cut") == tiny.record(tmp_path / "whole")


def test_the_partition_does_not_matter_but_for_what_it_drops() -> None:
    """The same examples in the same order, whoever held them."""
    found = [
        fedra.run({**CONFIG, "partition": {"name": "iid", "clients": clients}}).model.state_dict() for clients in (2, 7)
    ]
    assert toy.same_bits(*map(dict, found))


def test_examples_that_no_client_holds_are_left_out_and_shared_ones_count_once() -> None:
    inputs, targets = torch.arange(6.0).unsqueeze(1), torch.tensor([0, 1, 0, 1, 0, 1])
    rows = [np.array([4, 1]), np.array([1, 0])]
    pool = PooledClients.split(inputs, targets, Transform(), rows).together()
    assert (len(pool), pool[0].inputs.flatten().tolist(), pool[0].targets.tolist()) == (1, [0, 1, 4], [0, 1, 0])
    whole = PooledClients.split(inputs, targets, Transform(), [np.array([5, 4, 3]), np.array([0, 2, 1])]).together()
    assert whole[0].inputs is inputs


def test_what_does_not_apply_is_said_in_one_line() -> None:
    config = tiny.table(
        mode="centralized",
        runner=RUNNER,
        local={"epochs": 5},
        cohort={"fraction": 0.5},
        faults={"dropout": 0.2},
        diagnostics={"divergence": True, "classes": True},
    )
    told = lines(config)
    assert told == [
        "centralized: one model on the pooled examples of all clients, one round is one epoch; local.epochs = 5, "
        "cohort.fraction = 0.5, faults.dropout = 0.2, diagnostics.divergence = True do not apply"
    ]
    assert notice(read(tiny.table(cohort={"fraction": 0.5}))) is None
    plain = notice(read(tiny.table(mode="centralized", runner=RUNNER)))
    assert plain == "centralized: one model on the pooled examples of all clients, one round is one epoch"


def test_what_does_not_apply_has_no_effect(tmp_path: Path) -> None:
    federated = {"cohort": {"fraction": 0.3}, "faults": {"dropout": 0.9}, "diagnostics": {"proximal": True}}
    fedra.run(CONFIG, out=tmp_path / "plain")
    fedra.run({**CONFIG, **federated, "local": {**MOMENTUM, "epochs": 3}}, out=tmp_path / "other")
    assert tiny.record(tmp_path / "other") == tiny.record(tmp_path / "plain")
    written = RunFolder(tmp_path / "other").config()
    assert (written.local.epochs, written.cohort.fraction, written.faults.dropout) == (1, 1.0, 0.0)


def test_class_accuracies_are_still_measured(tmp_path: Path) -> None:
    fedra.run({**CONFIG, "diagnostics": {"classes": True}}, out=tmp_path)
    assert len(tiny.metrics(tmp_path)[-1]["class_accuracy"]) == 4


def test_titles_say_centralized(tmp_path: Path) -> None:
    folders = []
    for name, config in {
        "a": tiny.table(rounds=1),
        "b": tiny.table(rounds=1, mode="centralized", runner=RUNNER),
        "c": tiny.table(rounds=1, mode="centralized", runner=RUNNER, algorithm={"name": "fedarc"}),
    }.items():
        fedra.run(config, out=tmp_path / name)
        folders.append(RunFolder(tmp_path / name))
    assert titles(folders) == ["fedavg", "centralized", "centralized (fedarc)"]
    assert title(Config()) == "fedavg"
    assert title(read({"algorithm": {"plus": ["scaffold", {"name": "fine-tune"}]}})) == "fedavg + scaffold + fine-tune"


def test_parts_that_need_clients_are_refused_on_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text("")
    words = ["run", tmp_path / "c.toml", *tiny.WORDS, "mode=centralized", "--out", tmp_path / "run"]
    told = mistake(capsys, *words, "algorithm={name='fedprox', mu=0.1}")
    assert told.startswith("centralized training cannot use the part 'proximal'")
    assert not (tmp_path / "run").exists()
    code, out, _ = call(capsys, *words, "runner.threads=1", "algorithm={name='fedavg', plus=['clip']}")
    assert code == 0
    assert "centralized: one model" in out


def test_a_divergence_is_told_once(tmp_path: Path) -> None:
    config = tiny.table(mode="centralized", runner=RUNNER, local={"lr": 1e28})
    with pytest.raises(fedra.RunError, match="the run diverged in round 1"):
        fedra.run(config, out=tmp_path)


def test_a_sweep_tells_a_centralized_run_from_a_federated_one(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")
    words = [*tiny.WORDS, "rounds=1"]
    console = Console(file=io.StringIO())
    sweep(str(tmp_path / "c.toml"), words, 1, tmp_path / "out", console)
    with pytest.raises(ConfigError, match="must have the same configuration"):
        sweep(str(tmp_path / "c.toml"), [*words, "mode=centralized"], 1, tmp_path / "out", console)


def test_simulate_pools_your_own_clients() -> None:
    data = toy.clients()
    pairs = [(own.inputs, own.targets) for own in data.examples]
    settings: dict[str, Any] = {"rounds": 3, "batch": 7, "lr": 0.1, "momentum": 0.9, "schedule": "cosine"}
    algorithm = fedra.algorithms.fedarc(margin=ArcFace(scale=16.0, margin=0.3))
    screen = io.StringIO()
    found = fedra.simulate(
        algorithm,
        toy.mlp(),
        pairs,
        fraction=0.5,
        mode="centralized",
        console=Console(file=screen, width=200),
        **settings,
    )
    assert "cohort.fraction = 0.5 does not apply" in screen.getvalue()
    pool = [tuple(torch.cat(parts) for parts in zip(*pairs, strict=True))]
    again = fedra.simulate(algorithm, toy.mlp(), pool, mode="centralized", **settings)  # type: ignore[arg-type]
    assert toy.same_bits(found.model.state_dict(), again.model.state_dict())
    assert {line["bytes_up"] for line in found.metrics} == {0}


def test_it_is_a_mode_and_not_a_runner() -> None:
    with pytest.raises(ConfigError, match="must not be 'centralized', which is a mode: set mode = 'centralized'"):
        fedra.run(tiny.table(runner={"name": "centralized"}))
