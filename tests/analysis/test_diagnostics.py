"""The switches under [diagnostics]: figures known by hand, finite in real runs, and no trace in the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fedra
import tiny
import toy
from fedra.algorithms import fedavg
from fedra.analysis.diagnostics import ClassAccuracy, Divergence, Preservation, add_proximal_diagnostics, observers
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.core.batches import Examples
from fedra.core.evaluate import Counts
from fedra.core.job import Job
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model, Weights
from fedra.core.sharing import Sharing
from fedra.core.view import Server, Upload
from fedra.data.clients import SeparateClients
from fedra.errors import ConfigError
from fedra.experiment import run as experiment


@pytest.fixture(autouse=True)
def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Curves, "on_run_end", Callback.on_run_end)


def upload(**delta: list[float]) -> Upload:
    return Upload(
        delta={name: torch.tensor(value) for name, value in delta.items()},
        buffers={},
        examples=1,
        steps=1,
        effective_steps=1.0,
        extras={},
        metrics={},
    )


NOBODY = Server(weights=Weights({}, {}), memory={})


def test_divergence_by_hand() -> None:
    watch = Divergence()
    watch.begin()
    for delta in ([3.0, 4.0], [0.0, 0.0], [3.0, 0.0]):
        assert watch.upload(0, upload(w=delta), NOBODY) == {}
    assert watch.round(NOBODY, None) == {
        "global_local_distance": pytest.approx((5 + 0 + 3) / 3),
        "local_local_distance": pytest.approx((5 + 4 + 3) / 3),
    }
    watch.begin()
    watch.upload(0, upload(w=[0.0, 2.0], b=[0.0]), NOBODY)
    assert watch.round(NOBODY, None) == {"global_local_distance": 2.0, "local_local_distance": 0.0}


def counts(*correct: float, examples: float = 10) -> Counts:
    return Counts(torch.full((len(correct),), examples).double(), torch.tensor(correct).double(), 0.0)


def test_forgetting_by_hand() -> None:
    watch = ClassAccuracy()
    assert watch.round(NOBODY, counts(5, 0)) == {"class_accuracy": [0.5, 0.0], "forgetting": 0.0}
    assert watch.round(NOBODY, None) == {}
    assert watch.round(NOBODY, counts(2, 8))["forgetting"] == pytest.approx((0.3 + 0) / 2)
    assert watch.round(NOBODY, counts(4, 2))["forgetting"] == pytest.approx((0.1 + 0.6) / 2)
    assert watch.round(NOBODY, counts(9, 9))["forgetting"] == 0


def test_a_class_that_is_never_tested_has_no_accuracy() -> None:
    both = Counts(torch.tensor([10.0, 0.0]).double(), torch.tensor([4.0, 0.0]).double(), 0.0)
    assert ClassAccuracy().round(NOBODY, both) == {"class_accuracy": [0.4, None], "forgetting": 0.0}


def test_forgetting_goes_on_after_a_resume() -> None:
    past: list[dict[str, Any]] = [{"class_accuracy": [0.5, None]}, {"accuracy": None}, {"class_accuracy": [0.2, 0.8]}]
    work = toy.job(fedavg())
    (watch,) = observers(True, False, False, work, past)
    assert watch.round(NOBODY, counts(4, 2))["forgetting"] == pytest.approx((0.1 + 0.6) / 2)


def linear_job() -> Job:
    """Logits are the inputs themselves; the test set has one example of each of three classes."""
    module = toy.Net(torch.nn.Identity(), torch.nn.Linear(3, 3))
    with torch.no_grad():
        module.head.weight.copy_(torch.eye(3))  # type: ignore[operator,union-attr]
        module.head.bias.zero_()  # type: ignore[operator,union-attr]
    clients = SeparateClients([Examples(torch.zeros(4, 3), torch.tensor([0, 0, 0, 1]))])
    return Job(
        algorithm=fedavg(),
        model=Model(module),
        clients=clients,
        local=toy.LOCAL,
        classes=3,
        seed=0,
        test=Examples(torch.eye(3), torch.arange(3)),
    )


def test_preservation_by_hand() -> None:
    """The client holds class 0 to three quarters and class 1 to one; its model says 0 for all but class 1."""
    job = linear_job()
    server = Server(weights=job.model.weights(), memory={})
    watch = Preservation(job)
    watch.begin()
    moved = {"head.weight": torch.zeros(3, 3), "head.bias": torch.zeros(3)}
    moved["head.weight"][0, 2] = 2.0  # class 2 now looks like class 0
    figures = watch.upload(
        0, Upload(delta=moved, buffers={}, examples=4, steps=1, effective_steps=1.0, extras={}, metrics={}), server
    )
    assert figures == {
        "local_accuracy": pytest.approx(2 / 3),
        "in_local_accuracy": pytest.approx(0.75 * 1 + 0.25 * 1),
        "out_local_accuracy": pytest.approx((0.25 * 1 + 0.75 * 1 + 1 * 0) / 2),
    }
    worse = {"head.weight": torch.zeros(3, 3), "head.bias": torch.tensor([0.0, 0.0, 9.0])}  # everything is class 2
    figures = watch.upload(
        0, Upload(delta=worse, buffers={}, examples=4, steps=1, effective_steps=1.0, extras={}, metrics={}), server
    )
    assert (figures["in_local_accuracy"], figures["out_local_accuracy"]) == (0.0, pytest.approx(0.5))
    assert watch.round(server, None) == {
        "accuracy_before": 1.0,
        "local_accuracy_mean": pytest.approx(0.5),
        "local_accuracy_std": pytest.approx(1 / 6),
        "preservation": pytest.approx(-0.5),
    }


def test_preservation_needs_a_test_set() -> None:
    from dataclasses import replace

    with pytest.raises(ConfigError, match=r"must have a test set for diagnostics.preservation"):
        observers(False, True, False, replace(toy.job(fedavg()), test=None))


@pytest.mark.parametrize(
    ("sharing", "kept"),
    [(Sharing(private=("head.",)), "'head.'"), (Sharing(owned=("head.",)), "'head.'"), (Sharing(("",)), "every layer")],
)
def test_preservation_needs_layers_that_are_averaged(sharing: Sharing, kept: str) -> None:
    work = toy.job(fedavg().plus(sharing))
    with pytest.raises(ConfigError, match=rf"private or owned layers \({kept}\)"):
        observers(False, True, False, work)
    assert observers(True, False, True, work)
    assert observers(False, True, False, toy.job(fedavg().plus(Sharing(frozen=("head.",)))))


def test_clients_that_send_nothing_have_no_distance() -> None:
    found = fedra.run(tiny.table(rounds=1, algorithm={"name": "local-only"}, diagnostics={"divergence": True}))
    assert found.metrics[0]["global_local_distance"] == found.metrics[0]["local_local_distance"] == 0


FIGURES = {
    "classes": ({"class_accuracy", "forgetting"}, set()),
    "preservation": (
        {"accuracy_before", "local_accuracy_mean", "local_accuracy_std", "preservation"},
        {"local_accuracy", "in_local_accuracy", "out_local_accuracy"},
    ),
    "divergence": ({"global_local_distance", "local_local_distance"}, set()),
    "proximal": (set(), {"proximal_loss", "proximal_cosine", "drift/body.1", "drift/head"}),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    experiment.run(tiny.table(), out=folder)
    return folder


@pytest.mark.parametrize("switch", FIGURES)
def test_every_switch_adds_its_figures_and_nothing_else(tmp_path: Path, plain: Path, switch: str) -> None:
    fedra.run(tiny.table(diagnostics={switch: True}), out=tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    for file, added in zip(("metrics.jsonl", "clients.jsonl"), FIGURES[switch], strict=True):
        for line, base in zip(tiny.lines(tmp_path / file), tiny.lines(plain / file), strict=True):
            assert line.keys() - base.keys() == added
            assert all(line[name] == base[name] for name in base if name != "seconds")
            for name in added:
                values = line[name] if isinstance(line[name], list) else [line[name]]
                assert all(math.isfinite(value) for value in values), (name, line)
                assert name != "proximal_cosine" or -1 <= line[name] <= 1


def test_figures_of_the_diagnosis() -> None:
    """At the first step the client is where it started: no drift, no proximal loss, and no direction to compare."""
    work = add_proximal_diagnostics(toy.job(fedavg(), local=LocalTraining(epochs=1, batch=None, lr=0.1)))
    figures = toy.run(work, cohorts=((0,),)).uploads[0].metrics
    assert figures["proximal_loss"] == pytest.approx(0, abs=1e-12)
    assert figures["drift/head"] == 0
    assert math.isnan(figures["proximal_cosine"])


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "fedsol"},
        {"name": "fedsol", "scope": "head", "radius": "adaptive"},
        {"name": "fedsol", "proximal": {"name": "model-contrast"}},
        {"name": "scaffold", "plus": ["fedsam"]},
        {"name": "fedntd"},
    ],
)
def test_the_diagnosis_leaves_every_algorithm_its_bits(tmp_path: Path, algorithm: dict[str, Any]) -> None:
    fedra.run(tiny.table(rounds=2, algorithm=algorithm), out=tmp_path / "plain")
    fedra.run(tiny.table(rounds=2, algorithm=algorithm, diagnostics={"proximal": True}), out=tmp_path / "told")
    assert tiny.record(tmp_path / "plain")["model"] == tiny.record(tmp_path / "told")["model"]
    for line in tiny.lines(tmp_path / "told" / "clients.jsonl"):
        assert line["proximal_cosine"] is None or -1.0001 <= line["proximal_cosine"] <= 1.0001


def test_running_statistics_are_untouched_by_the_diagnosis() -> None:
    plain = toy.run(toy.job(fedavg(), toy.conv()))
    told = toy.run(add_proximal_diagnostics(toy.job(fedavg(), toy.conv())))
    assert toy.same_bits(plain.params, told.params)
    assert toy.same_bits(plain.server.weights.buffers, told.server.weights.buffers)


def test_dropout_is_untouched_by_the_diagnosis() -> None:
    plain = toy.run(toy.job(fedavg(), toy.forgetful()))
    told = toy.run(add_proximal_diagnostics(toy.job(fedavg(), toy.forgetful())))
    assert toy.same_bits(plain.params, told.params)
