"""Every client's own model against a plain implementation of its method, in float64, to rounding error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from naive import Setting
from naive_personal import Apfl, Ditto, Last, Meta, Personal, Private, Rep, federate, visit
from torch import nn

import toy
from fedra import algorithms as ours
from fedra.algorithms.fedfs import KeepLast
from fedra.core.algorithm import Algorithm
from fedra.core.tree import Params
from fedra.evaluation.personal_models import train_personal_models
from fedra.parts.gradient import Clip
from fedra.parts.personalize import FineTune
from fedra.runners import RUNNERS

COHORTS = ((0, 1), (1, 0), (0,))
"""The second client misses a round, the third never takes part."""


@dataclass
class Case:
    """One method and its plain counterpart; `make` builds the counterpart anew, because it keeps state."""

    name: str
    algorithm: Algorithm
    make: Callable[[], Personal]


def kept(algorithm: Algorithm) -> Algorithm:
    """The same without training after the last round."""
    return replace(algorithm, personalize=KeepLast())


@dataclass
class LastMeta(Meta, Last):
    """Per-FedAvg's steps, seen where a client's last round ended."""


CASES = [
    Case("keep-last", ours.fedavg().plus(KeepLast()), Last),
    Case("local-only", ours.local_only(), lambda: Private(prefix="")),
    Case("fedper", ours.fedper(), Private),
    Case("lg-fedavg", ours.lg_fedavg(), lambda: Private(prefix="body.")),
    Case("fedrep", ours.fedrep(), Rep),
    Case("ditto", ours.ditto(strength=0.7), lambda: Ditto(strength=0.7)),
    Case("apfl", ours.apfl(alpha=0.3), lambda: Apfl(alpha=0.3)),
    Case("apfl-fixed", ours.apfl(alpha=0.6, adaptive=False), lambda: Apfl(alpha=0.6, adaptive=False)),
    Case("per-fedavg", kept(ours.per_fedavg()), LastMeta),
    Case("per-fedavg-inner", kept(ours.per_fedavg(inner_lr=0.5)), lambda: LastMeta(inner_lr=0.5)),
    Case(
        "per-fedavg-hessian-free",
        kept(ours.per_fedavg(order="hessian-free", inner_lr=0.5, delta=0.01)),
        lambda: LastMeta(inner_lr=0.5, delta=0.01),
    ),
]


def setting() -> Setting:
    data = [(own.inputs, own.targets) for own in toy.clients().examples]
    local = toy.LOCAL
    assert local.batch is not None
    rates = (local.lr, local.lr_decay, local.momentum, local.weight_decay)
    return Setting(data, toy.SEED, local.epochs, local.batch, *rates)


def owned(algorithm: Algorithm, runner: str = "sequential") -> tuple[Params, dict[int, Params]]:
    """The global model and every client's own."""
    work = toy.job(algorithm)
    history = toy.run(work, COHORTS, runner)
    found = train_personal_models(
        work, RUNNERS[runner], history.server, lambda k: history.memory.get(k, {}), len(COHORTS), (0, 1, 2)
    )
    return history.params, {client: weights.params for client, weights in found if weights is not None}


def params_of(net: nn.Module) -> Params:
    return {name: value.detach() for name, value in net.named_parameters()}


@pytest.mark.parametrize("runner", ["sequential", "stacked"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_clients_own_model(case: Case, runner: str) -> None:
    method = case.make()
    server = federate(method, toy.mlp(), COHORTS, setting())
    found, own = owned(case.algorithm, runner)
    assert toy.distance(found, params_of(server)) < 1e-9
    for client in range(3):
        assert toy.distance(own[client], params_of(method.own(client, server))) < 1e-9
    assert toy.distance(own[0], own[1]) > 1e-3
    assert toy.distance(own[2], found) == 0  # it never took part


def test_a_share_that_leaves_its_bounds_is_brought_back() -> None:
    method = Apfl(alpha=0.01)
    hard = replace(setting(), lr=3.0, momentum=0.0)
    federate(method, toy.mlp(), ((0, 1, 2),), hard)
    assert any(share in (0.0, 1.0) for _, share in method.kept.values())
    local = replace(toy.LOCAL, lr=3.0, momentum=0.0)
    history = toy.run(toy.job(ours.apfl(alpha=0.01), local=local), ((0, 1, 2),))
    for client, (_, share) in method.kept.items():
        assert float(history.memory[client]["mixed-twin"]["alpha"]) == pytest.approx(share, abs=1e-12)


def test_hessian_free_is_the_exact_second_order_step() -> None:
    """With a small delta the two gradients to either side make up the product with the Hessian."""
    exact = LastMeta(inner_lr=0.5, hessian=True)
    server = federate(exact, toy.mlp(), COHORTS, setting())
    found, _ = owned(kept(ours.per_fedavg(order="hessian-free", inner_lr=0.5, delta=1e-4)))
    first, _ = owned(kept(ours.per_fedavg(inner_lr=0.5)))
    assert toy.distance(found, params_of(server)) < 1e-7
    assert toy.distance(first, params_of(server)) > 1e-3


@pytest.mark.parametrize("sizes", [(1, 5, 9), (4, 2, 3)])
def test_a_single_example_is_both_halves_on_every_runner(sizes: tuple[int, ...]) -> None:
    """In a stack the client with one example is padded; alone it is not."""
    local = replace(toy.LOCAL, epochs=2, batch=4)
    work = toy.job(ours.per_fedavg(), data=toy.clients(sizes=sizes), local=local)
    found, wanted = toy.run(work, runner="stacked"), toy.run(work)
    assert toy.distance(found.params, wanted.params) < 1e-12
    data = [(own.inputs, own.targets) for own in toy.clients(sizes=sizes).examples]
    plain = federate(Meta(), toy.mlp(), ((0, 1, 2), (0, 1, 2)), replace(setting(), data=data))
    assert toy.distance(wanted.params, params_of(plain)) < 1e-9


def test_per_fedavg_personalizes_by_plain_steps() -> None:
    """Fine-tuning takes neither momentum nor weight decay, at the inner rate or the last one."""
    for algorithm, lr in (
        (ours.per_fedavg(epochs=2, inner_lr=0.3), 0.3),
        (ours.per_fedavg(epochs=2), toy.LOCAL.lr * toy.LOCAL.lr_decay**3),
    ):
        found, own = owned(algorithm)
        start = toy.mlp()
        start.load_state_dict(found)
        bare = replace(setting(), lr=lr, decay=1.0, momentum=0.0, weight_decay=0.0, epochs=2)
        for client in range(3):
            wanted = visit(Personal(), start, len(COHORTS), client, bare)
            assert toy.distance(own[client], params_of(wanted)) < 1e-9


@pytest.mark.parametrize("algorithm", [ours.fedsol(rho=0.5), ours.fedprox(), ours.fedsam()], ids=["sol", "prox", "sam"])
def test_fine_tuning_is_plain_whatever_the_rounds_were(algorithm: Algorithm) -> None:
    """FedSoL-FT and the like: the perturbation and the proximal term end with the rounds."""
    found, own = owned(algorithm.plus(FineTune(epochs=2)))
    start = toy.mlp()
    start.load_state_dict(found)
    wanted = visit(Personal(), start, len(COHORTS), 2, setting())
    assert toy.distance(own[2], params_of(wanted)) < 1e-9


@pytest.mark.parametrize("twin", [ours.ditto(strength=5.0), ours.apfl()], ids=["ditto", "apfl"])
@pytest.mark.parametrize(
    ("other", "runner"),
    [
        ("fedavg", "sequential"),
        ("fedavg", "stacked"),
        ("fedavg", "processes"),
        ("fedsam", "sequential"),
        ("fedsam", "stacked"),
        ("scaffold", "sequential"),
        ("fedadam", "sequential"),
    ],
)
def test_a_twin_leaves_the_global_model_alone(other: str, twin: Algorithm, runner: str) -> None:
    """To the bit, with any method and under clipped gradients: the twin is in no norm and in no average."""
    settings = {"workers": 2} if runner == "processes" else {}
    base = ours.ENTRIES[other].recipe().plus(Clip(0.3))
    alone, both = (
        toy.run(toy.job(algorithm, toy.conv(torch.float32)), COHORTS, runner, **settings)
        for algorithm in (base, base.plus(twin))
    )
    assert toy.same_bits(alone.params, both.params)
    assert toy.same_bits(alone.server.weights.buffers, both.server.weights.buffers)
    assert [upload.metrics["update_norm"] for upload in alone.uploads] == [
        upload.metrics["update_norm"] for upload in both.uploads
    ]


def test_a_twin_has_running_statistics_of_its_own() -> None:
    work = toy.job(ours.ditto(), toy.conv())
    history = toy.run(work, ((0, 1, 2), (0, 1, 2)))
    means = [history.memory[client]["tethered-twin"]["buffers"]["body.1.running_mean"] for client in range(2)]
    assert not torch.equal(*means)
    assert int(history.memory[0]["tethered-twin"]["buffers"]["body.1.num_batches_tracked"]) == 12


@pytest.mark.parametrize("adam", [False, True])
def test_a_twin_is_stepped_by_the_clients_optimizer(adam: bool) -> None:
    """With no tether it is what the client would train alone; a fresh optimizer begins every round."""
    local = replace(toy.LOCAL, optimizer="adam", lr=0.02) if adam else toy.LOCAL
    twin = toy.run(toy.job(ours.ditto(strength=0.0), local=local), COHORTS)
    alone = toy.run(toy.job(ours.local_only(), local=local), COHORTS)
    for client in (0, 1):
        assert toy.distance(twin.memory[client]["tethered-twin"]["params"], alone.memory[client]["sharing"]) < 1e-12
