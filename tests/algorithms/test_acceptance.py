"""What the papers' formulas promise, each checked on its own; the numbers in names are those of the specification."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
from bowls import ToyLinear, ToyPull, ToyQuadratic, on
from torch import nn

import toy
from fedra import algorithms as fed
from fedra.algorithms.fedntd import NotTrueDistillation
from fedra.algorithms.fedprox import Proximal
from fedra.algorithms.fedsam import WeightRadius
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model, Output
from fedra.core.sharing import Sharing
from fedra.core.tree import Params
from fedra.errors import ConfigError
from fedra.parts.gradient import Perturb
from fedra.parts.objective import DynamicRegularizer, ModelContrast

PLAIN = LocalTraining(batch=4, lr=0.1)


def eps_of(rule: Perturb, stir: float = 0.3) -> tuple[Params, toy.Scene]:
    scene = toy.scene(fed.fedavg().plus(rule), stir=stir)
    view = scene.view()
    inner = lambda params: view.gradient(scene.work.algorithm.objective, params)  # noqa: E731
    return rule.perturbation(inner, scene.params, view), scene


@pytest.mark.parametrize("module", [toy.mlp(torch.float32), toy.conv(torch.float32)], ids=["mlp", "conv"])
@pytest.mark.parametrize("scope", ["all", "head", "body"])
@pytest.mark.parametrize("radius", ["fixed", "adaptive"])
def test_03_no_radius_is_fedavg_to_the_bit(module: toy.Net, scope: str, radius: str) -> None:
    plain = toy.run(toy.job(fed.fedavg(), module)).params
    still = fed.fedsol(rho=0.0, scope=scope, radius=radius)  # type: ignore[arg-type]
    assert toy.same_bits(toy.run(toy.job(still, module)).params, plain)


@pytest.mark.parametrize("scope", ["all", "head", "body"])
def test_04_the_perturbation_has_length_rho_and_stays_in_its_scope(scope: Literal["all", "head", "body"]) -> None:
    eps, scene = eps_of(Perturb(0.7, fed.fedsol().gradient[0].along, scope=scope))  # type: ignore[attr-defined]
    assert float(tree.norm(eps)) == pytest.approx(0.7, rel=1e-12)
    assert set(eps) == {name for name in scene.params if scope in ("all", name.partition(".")[0])}


@pytest.mark.parametrize("radius", ["fixed", "adaptive"])
def test_05_the_head_only_shortcut_is_two_passes(radius: Literal["fixed", "adaptive"]) -> None:
    algorithm = fed.fedsol(rho=0.7, radius=radius, scope="head")
    scene = toy.scene(algorithm, stir=0.3)
    rule = algorithm.gradient[0]
    assert isinstance(rule, Perturb)
    view = scene.view()
    short = rule.gradient(lambda at: view.gradient(algorithm.objective, at), scene.params, view)

    eps = rule.perturbation(lambda at: at, scene.params, scene.view())
    leaves = {name: value.detach().requires_grad_() for name, value in tree.add(scene.params, eps).items()}
    out = scene.work.model.output(scene.work.model.weights()._replace(params=leaves), scene.batch.inputs, train=True)
    nn.functional.cross_entropy(out.logits, scene.batch.targets).backward()  # type: ignore[no-untyped-call]
    assert toy.distance(short, {name: value.grad for name, value in leaves.items()}) < 1e-15  # type: ignore[misc]


def test_06_fednova_is_fedavg_on_equal_sizes() -> None:
    equal = toy.clients(sizes=(8, 8, 8))
    nova, plain = (toy.run(toy.job(a, data=equal)).params for a in (fed.fednova(), fed.fedavg()))
    assert toy.distance(nova, plain) < 1e-14


def test_07_scaffold_starts_as_fedavg() -> None:
    one = ((0, 1, 2),)
    assert toy.same_bits(toy.run(toy.job(fed.scaffold()), one).params, toy.run(toy.job(fed.fedavg()), one).params)


@pytest.mark.parametrize(("epochs", "excess"), [(5, 2.63), (50, 8.21), (250, 9.64)])
def test_08_control_variates_of_a_constant_gradient(epochs: int, excess: float) -> None:
    local = LocalTraining(epochs=epochs, batch=None, lr=0.01, momentum=0.9)
    for aware, factor, tolerance in ((True, 1.0, 1e-10), (False, excess, 5e-3)):
        work = toy.job(on(ToyLinear(2.0), fed.scaffold(momentum_aware=aware)), local=local)
        history = toy.run(work, ((0, 1, 2),))
        drifts = [memory["control-variates"]["own"] for memory in history.memory.values()]
        for drift in (*drifts, history.server.memory["control-variates"]["mean"]):
            for value in drift.values():
                assert torch.allclose(value, torch.full_like(value, 2.0 * factor), rtol=tolerance, atol=0)


def test_09_feddyn_keeps_the_mean_of_the_clients_slopes() -> None:
    history = toy.run(toy.job(fed.feddyn(alpha=0.2), data=toy.clients(sizes=(8, 8, 8))))
    h = history.server.memory["dynamic-regularizer"]["linear"]
    slopes = [memory["dynamic-regularizer"]["linear"] for memory in history.memory.values()]
    for name, value in h.items():
        assert torch.allclose(sum(slope[name] for slope in slopes) / 3, value, rtol=0, atol=1e-14)
        assert float(value.abs().max()) > 1e-4


def test_10_not_true_distillation_leaves_the_true_class_alone() -> None:
    scene = toy.scene(fed.fedntd(), stir=0.5)
    view = scene.view()
    logits = torch.randn(len(scene.batch.targets), toy.CLASSES, dtype=torch.float64, requires_grad=True)
    loss = NotTrueDistillation(1.0, 2.0).loss(Output(logits, logits), scene.params, view)
    (slope,) = torch.autograd.grad(loss, logits)
    true = slope.gather(1, scene.batch.targets.unsqueeze(1))
    assert torch.equal(true, torch.zeros_like(true))
    assert float(slope.abs().max()) > 0


def test_11_model_contrast_leaves_the_head_alone() -> None:
    scene = toy.scene(fed.moon(), stir=0.5)
    slope = scene.view().gradient([ModelContrast(2.0)], scene.params)
    assert not slope["head.weight"].any()
    assert not slope["head.bias"].any()
    assert float(slope["body.0.weight"].abs().max()) > 1e-6


def test_11_model_contrast_without_a_previous_model_does_nothing() -> None:
    scene = toy.scene(fed.moon())
    slope = scene.view().gradient([ModelContrast(2.0)], scene.params)
    assert not any(value.any() for value in slope.values())


def test_11_model_contrast_is_the_difference_of_two_cosines() -> None:
    scene = toy.scene(fed.moon(), stir=0.5)
    view = scene.view()
    features = torch.randn(len(scene.batch.targets), 6, dtype=torch.float64, requires_grad=True)
    teachers = view.teachers["model-contrast"]
    toward, away = (torch.cosine_similarity(features, teachers[name].features) for name in ("origin", "previous"))
    naive = 2.0 * torch.log1p(torch.exp((away - toward) / 0.5)).mean()
    loss = ModelContrast(2.0).loss(Output(features, features), scene.params, view)
    torch.testing.assert_close(loss, naive, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        *(torch.autograd.grad(value, features)[0] for value in (loss, naive)), rtol=1e-10, atol=0
    )


@pytest.mark.parametrize("algorithm", [fed.fedavg(), fed.feddyn(), fed.fedadam(), fed.scaffold(), fed.fedavgm()])
def test_12_a_frozen_head_keeps_its_bits(algorithm: Algorithm) -> None:
    babu = replace(algorithm, sharing=Sharing(frozen=("head.",)))
    work = toy.job(babu, toy.mlp(torch.float32))
    history = toy.run(work, ((0, 1, 2),) * 3)
    first = work.model.weights().params
    assert torch.equal(history.params["head.weight"], first["head.weight"])
    assert torch.equal(history.params["head.bias"], first["head.bias"])
    assert not torch.equal(history.params["body.0.weight"], first["body.0.weight"])
    assert all(set(upload.delta) == {"body.0.weight", "body.0.bias"} for upload in history.uploads)


def test_13_the_proximal_gradient() -> None:
    scene = toy.scene(fed.fedprox(mu=0.6), stir=0.5)
    slope = scene.view().gradient([Proximal(0.6)], scene.params)
    for name, value in slope.items():
        wanted = 0.6 * (scene.params[name] - scene.client.origin.params[name])
        assert torch.allclose(value, wanted, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("eta", "bias_scaling"), [(0.0, True), (0.2, True), (0.2, False)])
def test_14_the_adaptive_ball_entry_by_entry(eta: float, bias_scaling: bool) -> None:
    eps, scene = eps_of(Perturb(0.7, radius=WeightRadius(eta, bias_scaling)))
    slope = scene.view().gradient(scene.work.algorithm.objective, scene.params)
    size = 0.0
    for name, value in slope.items():
        for w, g in zip(scene.params[name].flatten().tolist(), value.flatten().tolist(), strict=True):
            t = 1.0 if name.endswith("bias") and not bias_scaling else abs(w) + eta
            size += (t * g) ** 2
    for name, value in slope.items():
        triples = zip(
            eps[name].flatten().tolist(),
            scene.params[name].flatten().tolist(),
            value.flatten().tolist(),
            strict=True,
        )
        for found, w, g in triples:
            t = 1.0 if name.endswith("bias") and not bias_scaling else abs(w) + eta
            assert found == pytest.approx(0.7 * t * t * g / size**0.5, rel=1e-10, abs=1e-15)


def test_15_batch_statistics_leave_no_buffers() -> None:
    work = toy.job(fed.fedavg(), toy.conv(track=False))
    assert not work.model.has_buffers
    assert all(upload.buffers == {} for upload in toy.run(work).uploads)


def test_16_weight_decay_is_taken_at_the_unperturbed_weights() -> None:
    start = torch.full((toy.CLASSES, 6), 0.5, dtype=torch.float64)
    bowl, decay = ToyQuadratic(), 0.25
    scene = toy.scene(on(bowl, fed.fedsam(rho=0.3)), local=LocalTraining(batch=4, lr=0.1, weight_decay=decay))
    scene.params["head.weight"].data.copy_(start)
    up = bowl.slope(start)
    moved = start + 0.3 * up / up.norm()
    scene.step()
    wanted = start - 0.1 * (bowl.slope(moved) + decay * start)
    assert torch.allclose(scene.params["head.weight"], wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("slope", "length"), [(1e-8, 0.0), (1e-3, 2.0)])
def test_18_rounding_noise_does_not_perturb(slope: float, length: float) -> None:
    (rule,) = fed.fedsol(proximal=ToyLinear(slope)).gradient
    assert isinstance(rule, Perturb)
    eps, _ = eps_of(rule)
    assert float(tree.norm(eps)) == pytest.approx(length, rel=1e-12)
    unguarded, _ = eps_of(replace(rule, floor=0.0))
    assert float(tree.norm(unguarded)) == pytest.approx(2.0, rel=1e-9)


@pytest.mark.parametrize("scope", ["all", "head"])
def test_18_the_first_step_is_fedavgs(scope: Literal["all", "head"]) -> None:
    once = LocalTraining(batch=None, lr=0.1)
    module = toy.mlp(torch.float32)
    found = toy.run(toy.job(fed.fedsol(scope=scope), module, local=once), ((0, 1, 2),)).params
    assert toy.same_bits(found, toy.run(toy.job(fed.fedavg(), module, local=once), ((0, 1, 2),)).params)


@pytest.mark.parametrize("variant", ["A0", "A1", "A2", "A3", "A4", "A5", "A6"])
def test_19_the_ablations_on_bowls(variant: Literal["A0", "A1", "A2", "A3", "A4", "A5", "A6"]) -> None:
    bowl, pull, rho, beta = ToyQuadratic(), ToyPull(), 0.4, 0.6
    algorithm = on(bowl, fed.fedsol_ablation(variant=variant, rho=rho, beta=beta, proximal=pull))
    scene = toy.scene(algorithm, local=PLAIN)
    w = scene.params["head.weight"].detach().clone()
    g = pull.slope(w)
    both = bowl.slope(w) + beta * g
    p, c = w + rho * g / g.norm(), w + rho * both / both.norm()
    wanted = {
        "A0": bowl.slope(w),
        "A1": bowl.slope(p),
        "A2": bowl.slope(w) + beta * pull.slope(p),
        "A3": bowl.slope(p) + beta * pull.slope(p),
        "A4": bowl.slope(c) + beta * pull.slope(c),
        "A5": bowl.slope(w) + beta * pull.slope(w),
        "A6": bowl.slope(p) + beta * pull.slope(w),
    }[variant]
    scene.step()
    assert torch.allclose(scene.params["head.weight"], w - 0.1 * wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("round", [0, 1, 7, 300])
def test_20_the_rate_decays_by_rounds(round: int) -> None:
    assert LocalTraining(lr=0.01, lr_decay=0.99).at(round).lr == pytest.approx(0.01 * 0.99**round, rel=1e-14)


def test_feddyn_refuses_to_divide_by_nothing() -> None:
    with pytest.raises(ConfigError, match=r"'alpha' of the part .* must be .*, got 0"):
        DynamicRegularizer(0.0)


def test_the_model_is_told_apart_by_name_not_by_place() -> None:
    """The head is the child of that name, wherever it was registered."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)
            self.body = nn.Linear(5, 3)

    model = Model(Backwards())
    out = model.output(model.weights(), torch.zeros(1, 5))
    assert out.features.shape == (1, 3)
    assert out.logits.shape == (1, 2)
