"""Precision: passes in fewer or more digits, weights and aggregation as they were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import fedra
import tiny
import toy
from fedra.algorithms import fedarc, fedavg, fedsol, moon
from fedra.config.reading import read
from fedra.core.algorithm import Algorithm
from fedra.core.model import Model
from fedra.core.precision import PRECISIONS, Precision, PrecisionName, build_precision
from fedra.core.tree import flatten
from fedra.errors import ConfigError
from fedra.experiment.build import build
from fedra.losses import LOSSES

HALF: tuple[PrecisionName, ...] = ("bfloat16", "float16")
CLOSE: dict[str, float] = {"bfloat16": 0.05, "float16": 0.01}
"""How far weights of about 0.5 may move away in two rounds."""


def trained(algorithm: Algorithm, name: str | None, net: toy.Net | None = None, **settings: Any) -> toy.History:
    module = net or toy.mlp(torch.float32)
    work = toy.job(algorithm, module)
    model = Model(module, precision=None if name is None else PRECISIONS[name])  # type: ignore[index]
    return toy.run(replace(work, model=model), **settings)


@pytest.mark.parametrize("runner", ["sequential", "processes", "stacked"])
@pytest.mark.parametrize("name", HALF)
def test_half_precision_is_near_and_not_equal(name: str, runner: str) -> None:
    exact = trained(fedavg(), "float32")
    rough = trained(fedavg(), name, runner=runner)
    assert 0 < toy.distance(exact.params, rough.params) < CLOSE[name]
    assert {value.dtype for value in rough.params.values()} == {torch.float32}
    assert all(value.dtype == torch.float32 for upload in rough.uploads for value in upload.delta.values())


@pytest.mark.parametrize("name", HALF)
def test_a_stack_of_half_precision_agrees_with_clients_alone(name: str) -> None:
    alone, stack = trained(fedavg(), name), trained(fedavg(), name, runner="stacked")
    assert toy.distance(alone.params, stack.params) < 1e-3


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("algorithm", [fedsol(), moon(mu=1.0)], ids=["fedsol", "moon"])
def test_perturbed_passes_and_teachers(algorithm: Algorithm, name: str) -> None:
    exact, rough = trained(algorithm, "float32"), trained(algorithm, name)
    assert 0 < toy.distance(exact.params, rough.params) < 4 * CLOSE[name]
    kinds = {value.dtype for value in flatten({"memory": rough.memory[0]}).values() if value.is_floating_point()}
    assert kinds <= {torch.float32}


@pytest.mark.parametrize("name", HALF)
def test_running_statistics_stay_whole(name: str) -> None:
    exact, rough = (
        trained(fedavg(), "float32", toy.conv(torch.float32)),
        trained(fedavg(), name, toy.conv(torch.float32)),
    )
    assert 0 < toy.distance(exact.params, rough.params) < 4 * CLOSE[name]
    assert {value.dtype for value in rough.server.weights.buffers.values()} == {torch.float32, torch.int64}


@pytest.mark.parametrize("name", [*HALF, "float64"])
@pytest.mark.parametrize("loss", LOSSES)
def test_margins_are_finite(loss: str, name: str) -> None:
    run = trained(fedarc(margin=LOSSES[loss]()), name)
    assert all(value.isfinite().all() for value in run.params.values())
    assert all(upload.broken_step is None for upload in run.uploads)


def test_losses_are_reckoned_in_the_weights_type() -> None:
    model = Model(toy.mlp(torch.float32), precision=PRECISIONS["bfloat16"])
    output = model.output(model.weights(), torch.randn(3, 5, generator=torch.Generator().manual_seed(0)))
    assert (output.features.dtype, output.logits.dtype) == (torch.float32, torch.float32)
    assert torch.equal(output.logits, output.logits.bfloat16().float()), "the pass was not in bfloat16"


def test_small_gradients_survive_float16() -> None:
    """A gradient under float16's smallest number is lost without the scale, and kept with it."""

    class Faint(nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return 2e-6 * features

    def slopes(precision: Precision, functional: bool = False) -> torch.Tensor:
        with torch.random.fork_rng():
            torch.random.manual_seed(0)
            net = toy.Net(nn.Linear(5, 6), nn.Sequential(nn.Linear(6, toy.CLASSES, bias=False), Faint()))
        scene = toy.scene(fedavg(), net)
        scene.work.model.precision = precision
        view = scene.view(functional)
        return view.gradient(scene.work.algorithm.objective, scene.params)["body.weight"]

    scaled = PRECISIONS["float16"]
    lost, kept = slopes(replace(scaled, loss_scale=1.0)), slopes(scaled)
    exact = slopes(PRECISIONS["float32"])
    assert float((kept - exact).norm() / exact.norm()) < 0.3 * float((lost - exact).norm() / exact.norm())
    assert torch.allclose(slopes(scaled, functional=True), kept, rtol=0.05, atol=0)


def test_float64_is_double_throughout() -> None:
    """A single-precision module under float64 trains as the same module made double does."""
    module = toy.mlp(torch.float32)
    double = toy.mlp(torch.float32).to(torch.float64)
    run, wanted = trained(fedavg(), "float64", module), trained(fedavg(), None, double)
    assert {value.dtype for value in run.params.values()} == {torch.float64}
    assert toy.same_bits(run.params, wanted.params)
    assert run.uploads[0].delta["head.weight"].dtype == torch.float64


def test_a_run_by_its_configuration(tmp_path: Any) -> None:
    whole = {name: fedra.run(tiny.table(precision=name)) for name in PRECISIONS}
    losses = {name: result.metrics[-1]["loss"] for name, result in whole.items()}
    assert len(set(losses.values())) == 4
    assert all(loss == pytest.approx(losses["float64"], abs=0.02) for loss in losses.values())
    assert losses["float32"] == pytest.approx(losses["float64"], abs=1e-5)
    kinds = {name: next(result.model.parameters()).dtype for name, result in whole.items()}
    assert kinds == {name: precision.weights for name, precision in PRECISIONS.items()}


def test_people_with_their_own_model() -> None:
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 5, generator=draw), torch.randint(toy.CLASSES, (8,), generator=draw)) for _ in range(2)]
    double = fedra.simulate(fedavg(), toy.mlp(), data, rounds=1)
    single = fedra.simulate(fedavg(), toy.mlp(), data, rounds=1, precision="float32")
    assert next(double.model.parameters()).dtype == torch.float64
    assert next(single.model.parameters()).dtype == torch.float32
    with pytest.raises(ConfigError, match=r"precision must be .*, got 'float8'"):
        fedra.simulate(fedavg(), toy.mlp(), data, rounds=1, precision="float8")  # type: ignore[arg-type]


def test_what_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"precision must be .*, got 'half'"):
        read({"precision": "half"})
    with pytest.raises(ConfigError, match="precision must be supported by the device 'meta', got 'bfloat16'"):
        build_precision("bfloat16", torch.device("meta"))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: torch.no_grad())  # one that casts nothing
    with pytest.raises(ConfigError, match=r"got 'float16' \(it computes in float32\): set 'float32'"):
        build_precision("float16", torch.device("cpu"))


def test_a_stack_with_batch_normalization_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot train batch normalization in half precision"):
        trained(fedavg(), "bfloat16", toy.conv(torch.float32), runner="stacked")


def test_the_test_set_is_made_ready_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedra.core import batches

    job = build(read(tiny.table())).job
    assert job.test is not None
    first, _ = job.test.ready(job.model, 0, 30)
    assert job.test.ready(job.model, 0, 30)[0] is first
    double = Model(toy.mlp())
    assert job.test.ready(double, 0, 30)[0].dtype == torch.float64
    monkeypatch.setattr(batches, "CACHE_BYTES", 0)
    again = build(read(tiny.table())).job
    assert again.test is not None
    assert again.test.ready(again.model, 0, 30)[0] is not again.test.ready(again.model, 0, 30)[0]
