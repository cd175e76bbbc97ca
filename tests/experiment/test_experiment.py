"""Experiment, and simulate through it: own objects have the abilities of configured runs."""

from __future__ import annotations

import inspect
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import fedra
import tiny
from fedra.algorithms import fedavg, fedprox, scaffold
from fedra.callbacks import Callback, RoundReport, RunContext
from fedra.callbacks.callback import CallbackFailed
from fedra.core.rates import SCHEDULES
from fedra.errors import ConfigError

DRAW = torch.Generator().manual_seed(1)
INPUTS = torch.randn(90, 6, generator=DRAW)
TARGETS = (INPUTS[:, 0] > 0).long() + 2 * (INPUTS[:, 1] > 0).long()
CLIENTS = [(INPUTS[k::3], TARGETS[k::3]) for k in range(3)]


class Net(nn.Module):
    """A module without body and head, with dropout in the middle."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.random.manual_seed(0)
            self.first, self.out = nn.Linear(6, 12), nn.Linear(12, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(torch.relu(self.first(inputs)))  # type: ignore[no-any-return]


def equal(left: nn.Module, right: nn.Module) -> bool:
    pairs = zip(left.state_dict().items(), right.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize("algorithm", [fedavg(), scaffold(), fedprox(mu=0.1)])
def test_any_module_comes_back_under_its_own_names(algorithm: fedra.Algorithm) -> None:
    result = fedra.simulate(algorithm, Net(), CLIENTS, CLIENTS[0], rounds=5, lr=0.3, batch=10)
    assert isinstance(result.model, Net)
    assert list(result.model.state_dict()) == ["first.weight", "first.bias", "out.weight", "out.bias"]
    named = fedra.simulate(
        algorithm, fedra.models.named_head(Net(), "out"), CLIENTS, CLIENTS[0], rounds=5, lr=0.3, batch=10
    )
    assert torch.equal(named.model.head.weight, result.model.out.weight)  # type: ignore[union-attr]
    assert result.metrics[-1]["accuracy"] > 0.5
    assert len(repr(result)) < 200


class Stop(Callback):
    def on_round_end(self, run: RunContext, report: RoundReport) -> None:
        if report.metrics["round"] == 2:
            raise RuntimeError("pulled the plug")


def settings(**changes: Any) -> dict[str, Any]:
    return {"rounds": 4, "lr": 0.2, "batch": 10, "runner": "sequential", "checkpoint": 0.0, **changes}


def test_own_objects_have_a_folder_and_resume_to_the_bit(tmp_path: Path) -> None:
    whole = fedra.simulate(scaffold(), Net(), CLIENTS, CLIENTS[0], **settings())
    with pytest.raises(CallbackFailed):
        fedra.simulate(scaffold(), Net(), CLIENTS, CLIENTS[0], out=tmp_path, callbacks=[Stop()], **settings())
    with pytest.raises(ConfigError, match="must not refer to Python objects, got one for algorithm"):
        fedra.resume(tmp_path)
    with pytest.raises(ConfigError, match="must have the same settings"):
        fedra.simulate(scaffold(), Net(), CLIENTS, CLIENTS[0], out=tmp_path, resume=True, **settings(lr=0.1))
    resumed = fedra.simulate(scaffold(), Net(), CLIENTS, CLIENTS[0], out=tmp_path, resume=True, **settings())
    assert equal(whole.model, resumed.model)
    assert (tmp_path / "curves.svg").exists()
    assert resumed.summary["final_accuracy"] == whole.summary["final_accuracy"]
    assert [line["round"] for line in tiny.metrics(tmp_path)] == [1, 2, 3, 4]


def test_the_settings_of_a_configuration(tmp_path: Path) -> None:
    result = fedra.simulate(
        fedavg(), Net(), CLIENTS, CLIENTS[0], rounds=6, optimizer="adam", lr=0.01, batch=7, drop_last=True,
        schedule={"name": "cosine"}, evaluate_every=3, faults={"dropout": 0.3}, diagnostics=["classes"], fraction=0.7,
    )  # fmt: skip
    assert [line["accuracy"] is not None for line in result.metrics] == [False, False, True] * 2
    assert "class_accuracy" in result.metrics[-1]
    assert any(line["dropped"] for line in result.metrics)
    parameters = inspect.signature(fedra.simulate).parameters
    assert {"optimizer", "drop_last", "out", "resume", "callbacks", "schedule", "public", "faults"} <= parameters.keys()


def test_verification_of_people_that_training_does_not_see() -> None:
    people = torch.arange(40) // 4 + 4
    images = torch.nn.functional.one_hot(people % 6, 6) + 0.1 * torch.randn(40, 6, generator=DRAW)
    result = fedra.simulate(fedavg(), Net(), CLIENTS, (images, people), rounds=1, protocol="verification")
    assert result.summary["protocol"] == "verification"
    assert 0.5 <= result.metrics[-1]["auroc"] <= 1


class Noisy(Dataset[Any]):
    """An augmentation inside of the data set, by whatever generator the user likes."""

    def __init__(self, kind: str, client: int = 0) -> None:
        self.kind, self.client = kind, client

    def __len__(self) -> int:
        return len(CLIENTS[self.client][1])

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        noise = {
            "torch": lambda: float(torch.randn(())),
            "random": lambda: random.gauss(0, 1),
            "numpy": lambda: float(np.random.randn()),  # noqa: NPY002
            "none": lambda: 0.0,
        }[self.kind]()
        inputs, targets = CLIENTS[self.client]
        return inputs[row] + noise, int(targets[row])


def trained(clients: list[Any], runner: str = "sequential", **changes: Any) -> nn.Module:
    return fedra.simulate(
        fedavg(), Net(), clients, rounds=2, epochs=2, lr=0.1, batch=10, runner=runner, **changes
    ).model


@pytest.mark.parametrize("kind", ["torch", "random", "numpy"])
def test_a_random_data_set_draws_anew_and_repeatably(kind: str) -> None:
    model = trained([Noisy(kind)])
    states = torch.random.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[union-attr,call-overload]  # noqa: NPY002
    assert equal(model, trained([Noisy(kind)]))
    assert equal(model, trained([Noisy(kind)], "processes"))
    assert not equal(model, trained([Noisy("none")]))
    assert torch.equal(states[0], torch.random.get_rng_state())
    assert states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])  # type: ignore[arg-type,call-overload]  # noqa: NPY002


def test_every_epoch_sees_another_draw() -> None:
    seen: list[float] = []

    class Watched(Noisy):
        def __getitem__(self, row: int) -> tuple[Tensor, int]:
            found = super().__getitem__(row)
            if row == 0:
                seen.append(float(found[0][0]))
            return found

    trained([Watched("torch")])
    assert len(set(seen[-4:])) == 4  # two rounds of two epochs


def test_a_data_set_without_noise_and_a_loader_equal_tensors() -> None:
    plain = trained(CLIENTS)
    assert equal(plain, trained([Noisy("none", client) for client in range(3)]))
    loaders = [DataLoader(Noisy("none", client), batch_size=3, shuffle=True) for client in range(3)]
    assert equal(plain, trained(loaders))
    assert equal(plain, trained([Noisy("none", client) for client in range(3)], "processes"))


def test_clients_with_transforms_of_their_own() -> None:
    doubled = [(inputs, targets, lambda batch: 2 * batch) for inputs, targets in CLIENTS]
    assert equal(trained(doubled), trained([(2 * inputs, targets) for inputs, targets in CLIENTS]))
    mixed = [CLIENTS[0], doubled[1], CLIENTS[2]]
    assert not equal(trained(mixed), trained(CLIENTS))


def test_a_column_of_targets_is_a_vector() -> None:
    assert equal(trained(CLIENTS), trained([(inputs, targets[:, None]) for inputs, targets in CLIENTS]))


def test_an_experiment_runs_again_the_same() -> None:
    experiment = fedra.Experiment(fedavg(), Net(), CLIENTS, CLIENTS[0], rounds=2, lr=0.1)
    assert equal(experiment.run().model, experiment.run().model)
    configured = fedra.Experiment.from_config(tiny.table(), ["rounds=1"])
    assert len(configured.run().metrics) == 1
    assert configured.config.local.schedule == {"name": "constant"}


def test_public_names() -> None:
    assert {"run", "resume", "simulate", "Experiment", "Algorithm", "callbacks", "parts"} <= set(dir(fedra))
    for name in fedra.__all__:
        assert getattr(fedra, name) is not None
    namespace: dict[str, Any] = {}
    exec("from fedra import *", namespace)
    assert namespace["Algorithm"] is fedra.Algorithm
    with pytest.raises(AttributeError, match="has no attribute 'sumulate'"):
        _ = fedra.sumulate


def test_local_training_as_one_object() -> None:
    iterate_results = trained(CLIENTS, momentum=0.5, schedule={"name": "cosine", "floor": 0.1})
    schedule = partial(SCHEDULES["cosine"], floor=0.1)
    local = fedra.LocalTraining(epochs=2, lr=0.1, batch=10, momentum=0.5, schedule=schedule)
    result = fedra.simulate(fedavg(), Net(), CLIENTS, rounds=2, runner="sequential", local=local)
    assert equal(iterate_results, result.model)
    with pytest.raises(ConfigError, match="only one of local and its single settings may be given, got local and lr"):
        fedra.simulate(fedavg(), Net(), CLIENTS, rounds=2, local=local, lr=0.5)
    with pytest.raises(ConfigError, match=r"local\.schedule must be a registered schedule"):
        fedra.simulate(fedavg(), Net(), CLIENTS, local=fedra.LocalTraining(schedule=lambda t, rounds: 1.0))


@pytest.mark.parametrize("kind", ["none", "torch"])
def test_centralized_training_reads_every_clients_own_data_set(kind: str) -> None:
    pooled = trained([Noisy(kind, client) for client in range(3)], "auto", mode="centralized")
    plain = trained(CLIENTS, "auto", mode="centralized")
    assert equal(pooled, plain) == (kind == "none")
    assert equal(pooled, trained([Noisy(kind, client) for client in range(3)], "auto", mode="centralized"))


def test_a_result_is_one_line(tmp_path: Path) -> None:
    result = fedra.run(tiny.table(rounds=2), out=tmp_path / "run")
    final = result.summary["final_accuracy"]
    where = f"folder='{tmp_path / 'run'}'"
    assert repr(result) == f"RunResult(RecognitionModel, 2 rounds, accuracy {final:.2%}, {where})"
