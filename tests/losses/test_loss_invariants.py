"""What must hold whatever the numbers are: identities, monotony, gradients, extremes, precision."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedra.errors import ConfigError, FedraError
from fedra.losses import LOSSES, AngularLoss, NormalizedSoftmax, Stateful
from fedra.losses.adaptive import turning_margin
from fedra.registry import fields

NAMES = list(LOSSES)
FEATURE_LENGTH = 25.0


def batch(
    dtype: torch.dtype = torch.float64, examples: int = 12, classes: int = 4, dimension: int = 6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    features = 10 * torch.randn(examples, dimension, generator=generator, dtype=torch.float64)
    weight = torch.randn(classes, dimension, generator=generator, dtype=torch.float64)
    return features.to(dtype), weight.to(dtype), torch.arange(examples) % classes


def extras(loss: AngularLoss, weight: torch.Tensor) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(9)
    state = {name: it.double() for name, it in loss.init_state(weight).items()}
    if "memory" in state:
        state["memory"] = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return {"state": state, "learned": loss.init_learned(weight), "generator": generator}


def true_logits(loss: AngularLoss, degrees: torch.Tensor) -> torch.Tensor:
    """The unscaled true-class logit over the angle."""
    cosine = torch.stack([degrees.deg2rad().cos(), torch.zeros_like(degrees)], dim=1)
    labels = torch.zeros(len(degrees), dtype=torch.long)
    norms = torch.full_like(degrees, FEATURE_LENGTH)
    weight = torch.ones(2, 2, dtype=degrees.dtype)
    logits: torch.Tensor = loss.logits(cosine, labels, norms=norms, **extras(loss, weight))
    return logits[:, 0]


ZERO_MARGIN: dict[str, dict[str, Any]] = {
    "cosface": {"margin": 0.0},
    "arcface": {"margin": 0.0},
    "combined": {"m1": 1.0, "m2": 0.0, "m3": 0.0},
    "sphereface-r": {"margin": 1.0, "scale": 64.0},
    "elastic-arcface": {"margin": 0.0, "sigma": 0.0},
    "elastic-arcface-plus": {"margin": 0.0, "sigma": 0.0},
    "elastic-cosface": {"margin": 0.0, "sigma": 0.0},
    "elastic-cosface-plus": {"margin": 0.0, "sigma": 0.0},
    "cvm": {"m1": 0.0, "m2": 0.0},
    "adaptive-margin": {"m1": 0.0, "m2": 0.0},
    "magface": {"lower_margin": 0.0, "upper_margin": 0.0},
    "adaface": {"margin": 0.0},
    "unitsface": {"margin": 0.0},
    "jamsface": {"angular": 1e-9, "cosine": 1e-9},
}


@pytest.mark.parametrize("name", sorted(ZERO_MARGIN))
@pytest.mark.parametrize("grad_mode", ["exact", "straight-through"])
def test_zero_margin_is_normalized_softmax(name: str, grad_mode: str) -> None:
    settings = dict(ZERO_MARGIN[name])
    if "grad_mode" in fields(LOSSES[name]):
        settings["grad_mode"] = grad_mode
    loss = LOSSES[name](**settings)
    cosine = torch.linspace(-1, 1, 303, dtype=torch.float64).reshape(101, 3)
    labels = torch.arange(101) % 3
    norms = torch.full((101,), FEATURE_LENGTH, dtype=torch.float64)
    logits = loss.logits(cosine, labels, norms=norms, **extras(loss, torch.ones(3, 2, dtype=torch.float64)))
    torch.testing.assert_close(logits, NormalizedSoftmax().logits(cosine, labels), rtol=0, atol=1e-6 * 64)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LOSSES["adaptive-margin"](m1=0.0, m2=0.4), LOSSES["arcface"](margin=0.4)),
        (LOSSES["combined"](m1=1.0, m2=0.4, m3=0.0), LOSSES["arcface"](margin=0.4)),
        (LOSSES["combined"](m1=1.0, m2=0.0, m3=0.4), LOSSES["cosface"](margin=0.4)),
        (LOSSES["combined"](m1=1.7, m2=0.0, m3=0.0), LOSSES["sphereface-r"](margin=1.7, scale=64.0)),
        (LOSSES["elastic-arcface"](sigma=0.0), LOSSES["arcface"]()),
        (LOSSES["magface"](lower_margin=0.5, upper_margin=0.5), LOSSES["arcface"]()),
    ],
)
def test_one_loss_contains_another(one: AngularLoss, other: AngularLoss) -> None:
    degrees = torch.linspace(0, 180, 2001, dtype=torch.float64)
    torch.testing.assert_close(true_logits(one, degrees), true_logits(other, degrees), rtol=0, atol=1e-8)


def test_sphereface_with_factor_one_is_the_length_times_the_cosine() -> None:
    degrees = torch.linspace(0, 180, 500, dtype=torch.float64)
    wanted = FEATURE_LENGTH * degrees.deg2rad().cos()
    torch.testing.assert_close(true_logits(LOSSES["sphereface"](margin=1.0), degrees), wanted, rtol=0, atol=1e-8)


MONOTONE = [
    *(LOSSES[name]() for name in NAMES if not name.startswith("elastic") and name != "softmax"),
    *(LOSSES[name](sigma=0.0) for name in NAMES if name.startswith("elastic")),
    *(LOSSES["combined"](m1=m1, m2=0.4, m3=0.1) for m1 in (0.9, 1.35, 3.0)),
    *(LOSSES["arcface"](overflow=overflow, margin=1.5) for overflow in ("thmm", "clamp")),
    LOSSES["adaptive-margin"](m1=0.9, m2=1.5),
    LOSSES["sphereface"](lambda_base=0.0, lambda_min=0.0),
]


@pytest.mark.parametrize("loss", MONOTONE, ids=lambda loss: type(loss).__name__)
def test_the_true_class_logit_never_rises_with_the_angle(loss: AngularLoss) -> None:
    logits = true_logits(loss, torch.linspace(0, 180, 10_001, dtype=torch.float64))
    assert float(logits.diff().max()) <= 1e-9
    assert float(logits[-1]) < float(logits[0])


@pytest.mark.parametrize(("name", "turn"), [("arcface", math.pi - 0.5), ("adaptive-margin", 2.6345)])
def test_without_overflow_rule_the_logit_rises_again(name: str, turn: float) -> None:
    degrees = torch.linspace(0, 180, 10_001, dtype=torch.float64)
    rises = true_logits(LOSSES[name](overflow="none"), degrees).diff() > 0
    first = float(degrees[:-1][rises].min().deg2rad())
    assert first == pytest.approx(turn, abs=5e-4)


def test_turning_margin_of_the_paper() -> None:
    assert math.pi - turning_margin(0.03, 0.5) == pytest.approx(2.6345, abs=5e-5)
    assert turning_margin(0.0, 0.5) == pytest.approx(0.5, abs=1e-12)


def test_easy_margin_leaves_the_far_half_alone() -> None:
    degrees = torch.linspace(90.1, 180, 100, dtype=torch.float64)
    for name in ("arcface", "adaptive-margin", "magface"):
        logits = true_logits(LOSSES[name](overflow="easy", scale=1.0), degrees)
        torch.testing.assert_close(logits, degrees.deg2rad().cos())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("circle", "broadface")])
def test_exact_gradients_match_finite_differences(name: str) -> None:
    settings = {"grad_mode": "exact"} if "grad_mode" in fields(LOSSES[name]) else {}
    loss: AngularLoss = LOSSES[name](**settings)
    features, weight, labels = batch()
    more = extras(loss, weight)

    def value(features: torch.Tensor, weight: torch.Tensor, *learned: torch.Tensor) -> torch.Tensor:
        return loss(
            features,
            weight,
            labels,
            state=more["state"],
            learned=dict(zip(more["learned"], learned, strict=True)),
            generator=torch.Generator().manual_seed(2),
        )

    inputs = [it.clone().requires_grad_() for it in (features, weight, *more["learned"].values())]
    if name == "adaface":  # its paper stops the gradient at the feature's length
        inputs[0].requires_grad_(False)
    if not loss.trains_vectors:
        inputs[1].requires_grad_(False)
    assert torch.autograd.gradcheck(value, inputs, eps=1e-6, atol=1e-4, rtol=1e-4)


def test_circle_gradient_is_its_detached_pace() -> None:
    cosine = torch.linspace(-0.9, 0.9, 12, dtype=torch.float64).reshape(4, 3).requires_grad_()
    logits = LOSSES["circle"](scale=10.0).logits(cosine, torch.tensor([0, 1, 2, 0]))
    (slope,) = torch.autograd.grad(logits.sum(), cosine)
    wanted = 10 * (cosine.detach() + 0.25).relu()
    for i, y in enumerate((0, 1, 2, 0)):
        wanted[i, y] = 10 * (1.25 - cosine[i, y].detach()).relu()
    torch.testing.assert_close(slope, wanted)


@pytest.mark.parametrize("name", [name for name in NAMES if "grad_mode" in fields(LOSSES[name])])
def test_straight_through_gradient_is_that_of_the_plain_cosine(name: str) -> None:
    loss = LOSSES[name](grad_mode="straight-through")
    cosine = torch.linspace(-0.97, 0.98, 40, dtype=torch.float64).reshape(10, 4).requires_grad_()
    labels = torch.arange(10) % 4
    norms = torch.full((10,), FEATURE_LENGTH, dtype=torch.float64)
    more = extras(loss, torch.ones(4, 2, dtype=torch.float64))
    logits = loss.logits(cosine, labels, norms=norms, **more)
    true = logits.gather(1, labels[:, None])[:, 0]
    scale = FEATURE_LENGTH if name in ("sphereface", "uniformface") else loss.scale
    (slope,) = torch.autograd.grad(true.sum(), cosine, retain_graph=True)
    torch.testing.assert_close(slope.gather(1, labels[:, None]), torch.full((10, 1), scale, dtype=torch.float64))
    if name == "sphereface2":  # not a softmax
        return
    (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels), cosine)
    wanted = scale * (logits.softmax(dim=1).gather(1, labels[:, None]) - 1) / 10
    torch.testing.assert_close(gradient.gather(1, labels[:, None]), wanted)


def test_exact_arcface_gradient_carries_the_sine_ratio() -> None:
    cosine = torch.tensor([[0.9, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = LOSSES["arcface"](scale=1.0)
    (slope,) = torch.autograd.grad(loss.logits(cosine, torch.tensor([0]))[0, 0], cosine)
    t = math.acos(0.9)
    assert float(slope[0, 0]) == pytest.approx(math.sin(t + 0.5) / math.sin(t))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_finite_at_both_poles_in_every_precision(name: str, dtype: torch.dtype) -> None:
    settings = [{"grad_mode": mode} for mode in ("exact", "straight-through")]
    for setting in settings if "grad_mode" in fields(LOSSES[name]) else [{}]:
        loss = LOSSES[name](**setting)
        weight = torch.eye(3, 4).to(dtype).requires_grad_()
        rows = [[20.0, 0, 0, 0], [-20.0, 0, 0, 0], [0, 0, 0, 0], [0, 3e-4, 0, 0], [1.0, 1.0, 1.0, 1.0]]
        features = torch.tensor(rows).to(dtype).requires_grad_()
        labels = torch.tensor([0, 0, 1, 1, 2])
        losses, state = loss.step(
            features, weight, labels, loss.init_state(weight.detach()), learned=loss.init_learned(weight.detach())
        )
        losses.mean().backward()
        assert losses.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert (weight.grad is not None) is loss.trains_vectors
        for tensor in (losses, features.grad, *([weight.grad] if loss.trains_vectors else []), *state.values()):
            assert tensor is not None
            assert tensor.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_autocast_keeps_the_margin_in_float32(name: str) -> None:
    features, weight, labels = batch(torch.float32)
    loss: AngularLoss = LOSSES[name]()
    state, learned = loss.init_state(weight), loss.init_learned(weight)

    def value() -> torch.Tensor:
        return loss.per_example(
            features, weight, labels, state=state, learned=learned, generator=torch.Generator().manual_seed(0)
        )

    plain = value()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = value()
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, plain, rtol=0.05, atol=2.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_at_both_poles_after_a_half_precision_product(name: str, dtype: torch.dtype) -> None:
    weight = torch.eye(3, 4).requires_grad_()
    features = torch.tensor([[20.0, 0, 0, 0], [-20.0, 0, 0, 0], [0.0, 7.0, 7.0, 7.0]], requires_grad=True)
    loss: AngularLoss = LOSSES[name]()
    plain = weight.detach()
    with torch.autocast("cpu", dtype=dtype):
        losses, _ = loss.step(
            features, weight, torch.tensor([0, 0, 1]), loss.init_state(plain), learned=loss.init_learned(plain)
        )
        losses.mean().backward()
    assert losses.dtype == torch.float32
    for gradient in (features.grad, weight.grad) if loss.trains_vectors else (features.grad,):
        assert gradient is not None
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_vmap_over_clients_equals_a_loop(name: str) -> None:
    loss = LOSSES[name](check=False, **({"sigma": 0.0} if name.startswith("elastic") else {}))
    features, weight, labels = batch(torch.float32)
    clients = [(features + 3 * i, weight + i, labels.roll(i)) for i in range(3)]
    states = [loss.init_state(w) for _, w, _ in clients]
    learned = [loss.init_learned(w) for _, w, _ in clients]
    mask = torch.arange(len(labels)) < 9
    mask = torch.stack([mask.roll(i) for i in range(3)])

    def step(x: Any, w: Any, y: Any, state: Any, extra: Any, real: Any) -> Any:
        return loss.step(x, w, y, state, mask=real, learned=extra)

    def stack(trees: list[Any]) -> Any:
        return {key: torch.stack([tree[key] for tree in trees]) for key in trees[0]}

    stacked = [torch.stack([client[k] for client in clients]) for k in range(3)]
    losses, new = torch.vmap(step, randomness="different")(*stacked, stack(states), stack(learned), mask)
    for i, client in enumerate(clients):
        wanted, state = step(*client, states[i], learned[i], mask[i])
        torch.testing.assert_close(losses[i], wanted, rtol=1e-4, atol=1e-4)
        for key, value in state.items():
            torch.testing.assert_close(new[key][i], value, rtol=1e-4, atol=1e-4)


def test_mean_and_per_example_agree_and_global_randomness_is_untouched_by_a_generator() -> None:
    features, weight, labels = batch()
    before = torch.random.get_rng_state()
    loss = LOSSES["elastic-arcface"]()
    mean = loss(features, weight, labels, generator=torch.Generator().manual_seed(4))
    each = loss.per_example(features, weight, labels, generator=torch.Generator().manual_seed(4))
    assert float(mean) == pytest.approx(float(each.mean()))
    assert torch.equal(before, torch.random.get_rng_state())


def test_mistakes_are_told_in_a_sentence() -> None:
    features, weight, labels = batch()
    loss = LOSSES["arcface"]()
    with pytest.raises(ConfigError, match=r"labels of ArcFace must be integers, got torch\.float32"):
        loss(features, weight, labels.float())
    with pytest.raises(ConfigError, match=r"must be between 0 and 3 \(4 classes\), got 4"):
        loss(features, weight, labels + 1)
    with pytest.raises(ConfigError, match=r"must be between 0 and 3 \(4 classes\), got -1"):
        loss(features, weight, labels - 1)
    with pytest.raises(ConfigError, match="must have one entry per feature"):
        loss(features, weight, labels[:3])
    with pytest.raises(ConfigError, match=r"got \(12, 6\) and \(4, 5\)"):
        loss(features, weight[:, :5], labels)
    with pytest.raises(ConfigError, match="ArcFace must have at least 2 classes, got 1"):
        loss(features, weight[:1], labels * 0)
    with pytest.raises(ConfigError, match="must have one entry per feature"):
        loss(features[:0], weight, labels[:0])
    with pytest.raises(ConfigError, match="margin of ArcFace must be at least 0, got -1"):
        LOSSES["arcface"](margin=-1)
    with pytest.raises(ConfigError, match="scale of CosFace must be a number, got '64'"):
        LOSSES["cosface"](scale="64")
    with pytest.raises(ConfigError, match="overflow of ArcFace must be 'thmm', 'easy', 'clamp' or 'none', got 'wrap'"):
        replace(loss, overflow="wrap")
    with pytest.raises(ConfigError, match="lower_norm of MagFace must be below upper_norm"):
        LOSSES["magface"](lower_norm=120.0)
    with pytest.raises(ConfigError, match="below largest"):
        LOSSES["jamsface"](angular=0.9)
    with pytest.raises(ConfigError, match="did you mean 'arcface'"):
        LOSSES["arcfaces"]
    with pytest.raises(ConfigError, match="must have the running statistic 't'"):
        LOSSES["curricularface"]()(features, weight, labels)
    with pytest.raises(ConfigError, match="must have the trained parameter 'bias'"):
        LOSSES["uniface"]()(features, weight, labels)
    with pytest.raises(ConfigError, match="norms must be given"):
        LOSSES["magface"]().logits(torch.zeros(1, 2), torch.tensor([0]))
    with pytest.raises(ConfigError, match=r"between -1 and 1 \(2 classes\), got 2"):
        loss.logits(torch.zeros(1, 2), torch.tensor([2]))
    with pytest.raises(ConfigError, match="must be integers"):
        loss.logits(torch.zeros(1, 2), torch.tensor([0.5]))
    with pytest.raises(ConfigError, match=r"must have shapes \(B, C\) and \(B,\)"):
        loss.logits(torch.zeros(3, 2), torch.tensor([0]))


@pytest.mark.parametrize(("culprit", "index"), [("features", 0), ("class weights", 1)])
def test_a_loss_that_is_not_finite_names_its_cause(culprit: str, index: int) -> None:
    inputs = list(batch())
    inputs[index][0, 0] = math.inf
    with pytest.raises(FedraError, match=f"^{culprit} of ArcFace must be finite"):
        LOSSES["arcface"]()(*inputs)
    assert not LOSSES["arcface"](check=False)(*inputs).isfinite()
    with pytest.raises(FedraError, match=r"^loss of Softmax must be finite"):
        LOSSES["softmax"]()(*(it * 1e200 if it.is_floating_point() else it for it in batch()))


def test_a_label_of_minus_one_has_no_true_column() -> None:
    cosine = torch.tensor([[0.5, -0.2], [0.5, -0.2]])
    logits = LOSSES["cosface"](scale=1.0, margin=0.3).logits(cosine, torch.tensor([-1, 0]))
    torch.testing.assert_close(logits, torch.tensor([[0.5, -0.2], [0.2, -0.2]]))


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_trains_a_head_in_a_plain_loop(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    features, _, labels = batch(torch.float32)
    features = torch.nn.Parameter(features)
    weight = torch.nn.Parameter(torch.randn(4, 6, generator=generator))
    loss = Stateful(LOSSES[name](), weight)
    rate = 0.05 if loss.loss.trains_vectors else 0.5
    optimizer = torch.optim.Adam([features, weight, *loss.parameters()], lr=rate)

    def hits() -> float:
        if loss.loss.trains_vectors:
            return float(loss.loss.compare(features, weight).argmax(dim=1).eq(labels).float().mean())
        likeness = loss.loss.compare(features, features).fill_diagonal_(-2)
        return float(labels[likeness.argmax(dim=1)].eq(labels).float().mean())

    assert hits() < 0.6
    for _ in range(150):
        optimizer.zero_grad()
        loss(features, weight, labels, generator=generator).backward()
        optimizer.step()
    assert hits() > 0.9


def test_an_unchecked_loss_compiles_to_one_graph() -> None:
    features, weight, labels = batch(torch.float32)
    loss = LOSSES["adaptive-margin"](check=False)
    compiled = torch.compile(lambda *it: loss(*it), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(features, weight, labels), loss(features, weight, labels))
