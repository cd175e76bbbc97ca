"""Every loss against a second implementation: float64, explicit acos, plain loops, written from the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from fedra.losses import LOSSES

CLASSES, DIMENSION, EXAMPLES = 5, 3, 60
Curve = Callable[[float, float, int], float]  # cosine, feature length, label -> modified cosine


def batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = 5 + 130 * torch.rand(EXAMPLES, 1, generator=generator, dtype=dtype)
    features = torch.randn(EXAMPLES, DIMENSION, generator=generator, dtype=dtype)
    weight = torch.randn(CLASSES, DIMENSION, generator=generator, dtype=dtype)
    labels = torch.randint(0, CLASSES, (EXAMPLES,), generator=generator)
    return lengths * features / features.norm(dim=1, keepdim=True), weight, labels


def shifted(c: float, m: float, turn: float | None = None) -> float:
    t = math.acos(c)
    if t + m <= math.pi:
        return math.cos(t + m)
    m = m if turn is None else turn
    return c - m * math.sin(m)


def psi(angle: float) -> float:
    k = math.floor(angle / math.pi)
    return float((-1) ** k * math.cos(angle) - 2 * k)


def adaptive(c: float, length: float, y: int) -> float:
    turn = brentq(lambda t: t + 0.03 * math.sin(t) ** 2 + 0.5 - math.pi, 2.0, math.pi)
    return shifted(c, 0.03 * math.sin(math.acos(c)) ** 2 + 0.5, math.pi - turn)


def magnitude(length: float) -> float:
    return min(max(length, 10.0), 110.0)


def adaface(c: float, length: float, y: int) -> float:
    z = min(max(0.333 * (min(length, 100.0) - 30.0) / (40.0 + 1e-3), -1.0), 1.0)
    angle = min(max(math.acos(c) - 0.4 * z, 0.0), math.pi)
    return math.cos(angle) - (0.4 + 0.4 * z)


TRUE_CLASS: dict[str, Curve] = {
    "normalized-softmax": lambda c, a, y: c,
    "cosface": lambda c, a, y: c - 0.35,
    "arcface": lambda c, a, y: shifted(c, 0.5),
    "combined": lambda c, a, y: shifted(c, 0.3) - 0.2,
    "sphereface-r": lambda c, a, y: psi(1.7 * math.acos(c)),
    "sphereface": lambda c, a, y: a / 64 * (c + (psi(4 * math.acos(c)) - c) / (1 + 1000 / (1 + 0.12 * 50))),
    "cvm": lambda c, a, y: c - 0.3 * math.sin(math.acos(c)) ** 2,
    "adaptive-margin": adaptive,
    "x2-softmax": lambda c, a, y: -0.9 * math.acos(c) ** 2 + 0.65,
    "jamsface": lambda c, a, y: shifted(c, 0.8 / (1 + math.exp(-0.1 * y))) - 0.8 / (1 + math.exp(0.2 * y)),
    "magface": lambda c, a, y: shifted(c, 0.45 + (0.8 - 0.45) / 100 * (magnitude(a) - 10)),
    "adaface": adaface,
    "curricularface": lambda c, a, y: shifted(c, 0.5),
    "circle": lambda c, a, y: 256 / 64 * max(1.25 - c, 0) * (c - 0.75),
    "adacos": lambda c, a, y: c * math.sqrt(2) * math.log(CLASSES - 1) / 64,
    "adacos-dynamic": lambda c, a, y: c * 7.5 / 64,
}
OTHER_CLASSES: dict[str, Callable[[float, float, float], float]] = {  # rival, true cosine, length -> modified
    "sphereface": lambda c, own, a: a / 64 * c,
    "cvm": lambda c, own, a: c + 0.1 * c * c,
    "curricularface": lambda c, own, a: c * (0.3 + c) if c > math.cos(math.acos(own) + 0.5) else c,
    "circle": lambda c, own, a: 256 / 64 * max(c + 0.25, 0) * (c - 0.25),
    "adacos": lambda c, own, a: c * math.sqrt(2) * math.log(CLASSES - 1) / 64,
    "adacos-dynamic": lambda c, own, a: c * 7.5 / 64,
}
STATES = {
    "sphereface": {"step": 50.0},
    "adaface": {"mean": 30.0, "std": 40.0},
    "curricularface": {"t": 0.3},
    "adacos-dynamic": {"scale": 7.5},
}
SCALES = {"sphereface-r": 30.0}


def extras(name: str) -> dict[str, Any]:
    labels = torch.arange(CLASSES, dtype=torch.float64)
    state = {key: torch.tensor(value, dtype=torch.float64) for key, value in STATES.get(name, {}).items()}
    return {"state": state, "learned": {"angular": 0.1 * labels, "cosine": -0.2 * labels}}


def penalties(name: str, lengths: list[float]) -> list[float]:
    if name == "magface":
        return [35 * (magnitude(a) / 110**2 + 1 / magnitude(a)) for a in lengths]
    if name == "jamsface":
        gained = [0.8 / (1 + math.exp(-0.1 * y)) + 0.8 / (1 + math.exp(0.2 * y)) for y in range(CLASSES)]
        return [-sum(gained) / CLASSES] * len(lengths)
    return [0.0] * len(lengths)


def cosines(features: torch.Tensor, weight: torch.Tensor) -> np.ndarray[Any, Any]:
    x, w = features.numpy(), weight.numpy()
    return np.array([[a @ b / np.sqrt((a @ a) * (b @ b)) for b in w] for a in x])


def expected_logits(name: str) -> tuple[list[list[float]], list[float]]:
    features, weight, labels = batch()
    cosine, rows, lengths = cosines(features, weight), [], []
    other = OTHER_CLASSES.get(name, lambda c, own, a: c)
    for i, y in enumerate(labels.tolist()):
        length = float(np.sqrt((features[i].numpy() ** 2).sum()))
        own = float(cosine[i, y])
        row = [other(float(c), own, length) for c in cosine[i]]
        row[y] = TRUE_CLASS[name](own, length, y)
        rows.append([SCALES.get(name, 64.0) * value for value in row])
        lengths.append(length)
    return rows, lengths


@pytest.mark.parametrize("name", sorted(TRUE_CLASS))
def test_logits_and_losses_follow_the_formula(name: str) -> None:
    features, weight, labels = batch()
    rows, lengths = expected_logits(name)
    assert cosines(features, weight)[range(EXAMPLES), labels].min() < -0.9  # some lie beyond pi - m
    loss = LOSSES[name]()
    logits = loss.logits(torch.tensor(cosines(features, weight)), labels, norms=features.norm(dim=1), **extras(name))
    np.testing.assert_allclose(logits.numpy(), rows, rtol=1e-7, atol=1e-5)
    wanted = []
    for row, y, penalty in zip(rows, labels.tolist(), penalties(name, lengths), strict=True):
        largest = max(row)
        log_sum = largest + math.log(sum(math.exp(z - largest) for z in row))
        wanted.append(log_sum - row[y] + penalty)
    np.testing.assert_allclose(loss.per_example(features, weight, labels, **extras(name)).numpy(), wanted, atol=1e-5)
    assert float(loss(features, weight, labels, **extras(name))) == pytest.approx(sum(wanted) / len(wanted), abs=1e-5)


def test_softmax_is_the_plain_inner_product() -> None:
    features, weight, labels = batch()
    wanted = torch.nn.functional.cross_entropy(features @ weight.T, labels)
    torch.testing.assert_close(LOSSES["softmax"]()(features, weight, labels), wanted)


@pytest.mark.parametrize("overflow", ["easy", "clamp", "none"])
def test_combined_overflow_rules_for_a_stretched_angle(overflow: str) -> None:
    loss = LOSSES["combined"](m1=1.4, m2=0.3, m3=0.1, overflow=overflow, scale=1.0)
    angles = np.linspace(0.01, 3.13, 50)
    cosine = torch.tensor(np.stack([np.cos(angles), 0 * angles], axis=1))
    actual = loss.logits(cosine, torch.zeros(50, dtype=torch.long))[:, 0]
    for t, value in zip(angles, actual.tolist(), strict=True):
        stretched = 1.4 * t + 0.3
        wanted = math.cos(min(stretched, math.pi) if overflow == "clamp" else stretched)
        if overflow == "easy" and t >= math.pi / 2:
            wanted = math.cos(t)
        assert value == pytest.approx(wanted - 0.1, abs=1e-9)


def softplus(z: float) -> float:
    return max(z, 0.0) + math.log1p(math.exp(-abs(z)))


@pytest.mark.parametrize("name", ["sphereface2", "uniface"])
def test_binary_losses_follow_the_formula(name: str) -> None:
    features, weight, labels = batch()
    loss = LOSSES[name]()
    learned = {"bias": torch.tensor(-3.0, dtype=torch.float64)}
    wanted = []
    for row, y in zip(cosines(features, weight), labels.tolist(), strict=True):
        total = 0.0
        for j, c in enumerate(row):
            if name == "uniface":
                total += softplus(-(64 * (c - 0.4) + 3)) if j == y else softplus(64 * c + 3)
            else:
                g = 2 * ((c + 1) / 2) ** 3 - 1
                positive, negative = 0.7 * softplus(-(40 * (g - 0.4) - 3)), 0.3 * softplus(40 * (g + 0.4) - 3)
                total += 50 / 40 * (positive if j == y else negative)
        wanted.append(total)
    actual = loss.per_example(features, weight, labels, learned=learned)
    np.testing.assert_allclose(actual.numpy(), wanted, rtol=1e-9)


@pytest.mark.parametrize("classes", [1, 2, 3, 10, 10_000])
@pytest.mark.parametrize(("scale", "margin"), [(20.0, 0.3), (64.0, 0.4)])
def test_sphereface2_starts_with_balanced_pulls(classes: int, scale: float, margin: float) -> None:
    loss = LOSSES["sphereface2"](scale=scale, margin=margin)
    bias = loss.initial_bias(classes)
    g = 2 * 0.5**3 - 1
    positive = 0.7 / (1 + math.exp(scale * (g - margin) + bias))
    negative = 0.3 * max(classes - 1, 1) / (1 + math.exp(-(scale * (g + margin) + bias)))
    assert positive == pytest.approx(negative, rel=1e-6)


def test_elastic_margins_are_normal_and_fresh() -> None:
    generator = torch.Generator().manual_seed(1)
    cosine = torch.full((20_000, 2), 0.2, dtype=torch.float64)
    labels = torch.zeros(20_000, dtype=torch.long)
    for name, mean in (("elastic-arcface", 0.5), ("elastic-cosface", 0.35)):
        loss = LOSSES[name](scale=1.0)
        true = loss.logits(cosine, labels, generator=generator)[:, 0]
        margins = true.acos() - math.acos(0.2) if mean == 0.5 else 0.2 - true
        assert float(margins.mean()) == pytest.approx(mean, abs=2e-3)
        assert float(margins.std()) == pytest.approx(0.05, abs=2e-3)
        assert len(margins.unique()) > 19_000
        assert not torch.equal(true, loss.logits(cosine, labels, generator=generator)[:, 0])
        twins = [loss.logits(cosine, labels, generator=torch.Generator().manual_seed(7)) for _ in range(2)]
        assert torch.equal(*twins)


def test_elastic_plus_gives_the_smallest_margin_to_the_nearest_example() -> None:
    cosine = torch.tensor([[0.1, 0.0], [0.9, 0.0], [0.5, 0.0], [0.3, 0.0]], dtype=torch.float64)
    labels = torch.zeros(4, dtype=torch.long)

    def margins(name: str, **settings: Any) -> list[float]:
        loss = LOSSES[name](scale=1.0, **settings)
        logits = loss.logits(cosine, labels, generator=torch.Generator().manual_seed(3))
        return (cosine[:, 0] - logits[:, 0]).tolist()

    drawn = sorted(margins("elastic-cosface", sigma=0.02))
    assert margins("elastic-cosface-plus") == pytest.approx([drawn[3], drawn[0], drawn[1], drawn[2]])
    published = margins("elastic-cosface-plus", assignment="published")
    assert published == pytest.approx([drawn[1], drawn[2], drawn[3], drawn[0]])


def test_unitsface_adds_a_threshold_between_samples() -> None:
    features, weight, labels = batch()
    loss = LOSSES["unitsface"]()
    memory = batch(seed=1)[1] * 3
    memory[4] = 0  # class 4 has not been seen
    state = {"memory": memory, "threshold": torch.tensor(2.0, dtype=torch.float64)}
    learned = {"bias": torch.tensor(0.5, dtype=torch.float64)}
    actual = loss.per_example(features, weight, labels, state=state, learned=learned)
    plain = LOSSES["cosface"](margin=0.4).per_example(features, weight, labels)
    pairs = cosines(features, memory[:4])
    for i, y in enumerate(labels.tolist()):
        wanted = float(plain[i])
        if y != 4:
            wanted += softplus(-(64 * (pairs[i, y] - 0.1) - 2.5))
            wanted += sum(softplus(64 * pairs[i, j] - 2.5) for j in range(4) if j != y)
        assert float(actual[i]) == pytest.approx(wanted, rel=1e-9)
