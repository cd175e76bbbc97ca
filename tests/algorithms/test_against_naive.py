"""Every algorithm against a plain implementation of its formulas, in float64, to rounding error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import naive
import pytest
import torch
from naive import Method, Setting, train
from naive_extras import Contrast, Decorrelate, Distance, Dyn, Kd, NovaControl, Ntd, Variates
from naive_methods import Arc, Babu, Clipped, Nova, Sam, Served, Smoo, Sol, Speed, calibrated, restricted, with_vectors
from test_fedfr import NAME as FEDFR
from test_owned_against_naive import CASES as OWNED
from test_personal_against_naive import CASES as PERSONAL

import toy
from fedra import algorithms as ours
from fedra.algorithms import ENTRIES
from fedra.algorithms.fednova import NormalizedMean, NovaDirection
from fedra.algorithms.fedntd import NotTrueDistillation
from fedra.algorithms.fedprox import Proximal
from fedra.algorithms.fedsol import Distillation
from fedra.algorithms.scaffold import ControlVariates
from fedra.core.algorithm import Algorithm
from fedra.losses import ArcFace
from fedra.parts.combine import PlainMean
from fedra.parts.objective import DynamicRegularizer, ModelContrast

EVERYONE = ((0, 1, 2), (0, 1, 2))
LATECOMER = ((0, 1), (1, 2), (0, 2))


@dataclass
class Case:
    """One algorithm and its plain counterpart; `make` builds the counterpart anew, because it keeps state."""

    name: str
    algorithm: Algorithm
    make: Callable[[], Method]


class SolNova(Sol):
    """FedSoL's steps, FedNova's mean."""

    aggregate = Nova.aggregate


def sol(name: str, term: Any, extra: Callable[[], naive.Extra], **settings: Any) -> Case:
    return Case(f"fedsol-{name}", ours.fedsol(rho=0.5, proximal=term, **settings), lambda: Sol(extra(), rho=0.5))


def shaped(radius: str, over: str, scope: str) -> Case:
    algorithm = ours.fedsol(rho=0.7, radius=radius, over=over, scope=scope)  # type: ignore[arg-type]
    kept = over if radius == "adaptive" else None
    return Case(f"fedsol-{radius}-{over}-{scope}", algorithm, lambda: Sol(Kd(), rho=0.7, over=kept, scope=scope))


def scaffold(name: str, momentum: bool, size: bool, clip: float | None = None) -> Case:
    def make() -> Method:
        extra = Variates(momentum, size, setting=SETTING)
        return Clipped(extra, norm=clip) if clip else Method(extra)

    return Case(name, ours.scaffold(momentum_aware=momentum, size_aware=size, clip=clip), make)


def setting(data: naive.Data) -> Setting:
    local = toy.LOCAL
    batch = local.batch
    assert batch is not None
    return Setting(data, toy.SEED, local.epochs, batch, local.lr, local.lr_decay, local.momentum, local.weight_decay)


SETTING = setting([(own.inputs, own.targets) for own in toy.clients().examples])

ARC = ArcFace(scale=8.0, margin=0.4, overflow="none")  # the bare formula, with no rule for angles beyond pi

CASES = [
    Case("fedavg", ours.fedavg(), Method),
    Case("fedprox", ours.fedprox(mu=0.6), lambda: Method(Distance(0.6))),
    Case("fedavgm", ours.fedavgm(lr=0.8, momentum=0.5), lambda: Served(lr=0.8, beta1=0.5)),
    Case("fedadam", ours.fedadam(), lambda: Served(kind="adam", lr=0.01)),
    Case("fedyogi", ours.fedyogi(lr=0.02), lambda: Served(kind="yogi", lr=0.02)),
    Case("fedadagrad", ours.fedadagrad(beta1=0.3), lambda: Served(kind="adagrad", lr=0.01, beta1=0.3)),
    scaffold("scaffold", True, False),
    scaffold("scaffold-plain", False, False),
    scaffold("scaffold-sizes", True, True),
    scaffold("scaffold-clip", True, False, clip=0.4),
    Case("fednova", ours.fednova(), Nova),
    Case("fednova-official", ours.fednova(control="official"), lambda: Nova(NovaControl(False))),
    Case("fednova-correct", ours.fednova(control="correct"), lambda: Nova(NovaControl(True))),
    Case("feddyn", ours.feddyn(alpha=0.2), lambda: Method(Dyn(0.2))),
    Case("moon", ours.moon(mu=2.0), lambda: Method(Contrast(2.0))),
    Case("fedntd", ours.fedntd(beta=0.8, temperature=2.0), lambda: Method(Ntd(0.8, 2.0))),
    Case("fedsam", ours.fedsam(rho=0.3), lambda: Sam(rho=0.3)),
    Case("fedasam", ours.fedasam(), lambda: Sam(rho=1.0, eta=0.0)),
    Case("fedasam-eta", ours.fedasam(rho=0.7, eta=0.2), lambda: Sam(rho=0.7, eta=0.2)),
    Case(
        "fedasam-bias",
        ours.fedasam(rho=0.7, eta=0.2, bias_scaling=False),
        lambda: Sam(rho=0.7, eta=0.2, bias_scaling=False),
    ),
    Case("feddecorr", ours.feddecorr(beta=0.3), lambda: Method(Decorrelate(0.3))),
    Case("fedlc", ours.fedlc(tau=0.7), lambda: Method(head_loss=calibrated(0.7))),
    Case("fedrs", ours.fedrs(alpha=0.4), lambda: Method(head_loss=restricted(0.4))),
    Case("fedspeed", ours.fedspeed(rho=0.3, alpha=0.2), lambda: Speed(Dyn(0.2), rho=0.3)),
    Case("fedsmoo", ours.fedsmoo(rho=0.3, alpha=0.2), lambda: Smoo(Dyn(0.2), rho=0.3)),
    Case("fedbabu", ours.fedbabu(), Babu),
    Case("knn-per", ours.knn_per(), Method),
    Case("fedarc", ours.fedarc(margin=ARC), Arc),
    Case(
        "fedarc-repo",
        ours.fedarc(margin=ARC, objective="repo", weight=0.3),
        lambda: Arc(weight=0.3, blend=True),
    ),
    *(shaped("fixed", "dim0", scope) for scope in ("all", "head", "body")),
    *(shaped("adaptive", over, scope) for over in ("dim0", "tensor", "layer") for scope in ("all", "head", "body")),
    sol("distillation-squared", Distillation(2.0, 2.0, True), lambda: Kd(2.0, True, 2.0)),
    sol("proximal", Proximal(0.5), lambda: Distance(0.5)),
    sol("not-true", NotTrueDistillation(), Ntd),
    sol("contrast", ModelContrast(), Contrast),
    sol("dynamic", DynamicRegularizer(0.2), lambda: Dyn(0.2)),
    sol("variates", ControlVariates(), lambda: Variates(setting=SETTING)),
    Case(
        "fedsol-nova",
        ours.fedsol(rho=0.5, proximal=NovaDirection()).plus(NormalizedMean()),
        lambda: SolNova(NovaControl(True), rho=0.5),
    ),
    *(
        Case(
            f"fedsol-ablation-{v}",
            ours.fedsol_ablation(variant=v, rho=0.4, beta=0.6),
            lambda v=v: Sol(Kd(), rho=0.4, beta=0.6, variant=v),  # type: ignore[misc]
        )
        for v in ("A0", "A1", "A2", "A3", "A4", "A5", "A6")
    ),
]


def test_every_algorithm_has_a_plain_counterpart() -> None:
    own = {name for name in ENTRIES if ENTRIES[name].recipe.__module__.startswith("fedra.")}
    others = {case.name for case in (*OWNED, *PERSONAL)} | {FEDFR}
    assert own <= {case.name.removesuffix("-A1") for case in CASES} | {"fedsol"} | others


def create(algorithm: Algorithm) -> torch.nn.Module:
    """The net where training starts, with class vectors if the algorithm brings any."""
    brought = toy.start(toy.job(algorithm)).params.get("margin-softmax.vectors")
    return toy.mlp() if brought is None else with_vectors(toy.mlp(), brought)


@pytest.mark.parametrize("cohorts", [EVERYONE, LATECOMER], ids=["everyone", "latecomer"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_parameters_after_all_rounds(case: Case, cohorts: tuple[tuple[int, ...], ...]) -> None:
    found = toy.run(toy.job(case.algorithm), cohorts).params
    wanted = dict(train(case.make(), create(case.algorithm), cohorts, SETTING).named_parameters())
    assert toy.distance(found, {name: value.detach() for name, value in wanted.items()}) < 1e-9
    assert toy.distance(found, toy.start(toy.job(case.algorithm)).params) > 1e-3


@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("name", ["fedavg", "fedsam", "fedsol", "fedsol-head", "fedsol-proximal"])
def test_batch_normalization(name: str, track: bool) -> None:
    """Running statistics come from the unperturbed pass and are averaged by size; counters take the largest."""
    algorithm, method = {
        "fedavg": (ours.fedavg(), Method()),
        "fedsam": (ours.fedsam(rho=0.3), Sam(rho=0.3)),
        "fedsol": (ours.fedsol(rho=0.3), BatchTeacher(Kd(), rho=0.3)),
        "fedsol-head": (ours.fedsol(rho=0.3, scope="head"), BatchTeacher(Kd(), rho=0.3, scope="head")),
        "fedsol-proximal": (ours.fedsol(rho=0.3, proximal=Proximal()), BatchTeacher(Distance(1.0), rho=0.3)),
    }[name]
    work = toy.job(algorithm, toy.conv(track=track))
    found = toy.run(work).server.weights
    data = [(own.inputs, own.targets) for own in work.clients.examples]  # type: ignore[attr-defined]
    wanted = train(method, toy.conv(track=track), EVERYONE, setting(data)).state_dict()
    assert toy.distance({**found.params, **found.buffers}, wanted) < 1e-9
    if track:
        assert int(found.buffers["body.1.num_batches_tracked"]) == 12


@dataclass
class BatchTeacher(Sol):
    """FedSoL whose running statistics are updated by one pass at the client's own weights."""

    def gradient(self, scene: naive.Scene, x: torch.Tensor, y: torch.Tensor) -> naive.Values:
        before = {name: value.clone() for name, value in scene.net.named_buffers()}
        naive.logits(scene.net, x)
        after = {name: value.clone() for name, value in scene.net.named_buffers()}
        with torch.no_grad():
            for name, value in scene.net.named_buffers():
                value.copy_(before[name])
        found = super().gradient(scene, x, y)
        with torch.no_grad():
            for name, value in scene.net.named_buffers():
                value.copy_(after[name])
        return found


class Uniform(Method):
    """The mean in which all clients count alike."""

    def aggregate(self, server: Any, scenes: list[naive.Scene], setting: Setting) -> None:
        naive.mix(server, scenes, [1 / len(scenes)] * len(scenes))


class UniformSol(Sol):
    """FedSoL's steps, the mean of algorithm 1."""

    aggregate = Uniform.aggregate


def test_the_plain_mean_counts_clients_alike() -> None:
    found = toy.run(toy.job(ours.fedavg().plus(PlainMean()))).params
    wanted = dict(train(Uniform(), toy.mlp(), EVERYONE, SETTING).named_parameters())
    assert toy.distance(found, {name: value.detach() for name, value in wanted.items()}) < 1e-12


def test_fedsol_offers_the_mean_of_its_algorithm() -> None:
    weighted, uniform = (toy.run(toy.job(ours.fedsol(rho=0.5, mean=mean))).params for mean in ("weighted", "uniform"))  # type: ignore[arg-type]
    wanted = dict(train(UniformSol(Kd(), rho=0.5), toy.mlp(), EVERYONE, SETTING).named_parameters())
    assert toy.distance(uniform, {name: value.detach() for name, value in wanted.items()}) < 1e-9
    assert toy.distance(uniform, weighted) > 1e-3
