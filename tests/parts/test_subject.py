"""The loss of one person's images against plain loops, and what it must never do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedra.algorithms.fedfs import FeatureTie, IntraSubject
from fedra.core.model import Output
from fedra.core.view import Batch
from fedra.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[1] / "algorithms"))
from naive_subject import OLD, insub, tie

COUNT, LENGTH = 9, 5
VARIANTS: list[dict[str, Any]] = [
    {},
    {"ratio": 1.0},
    {"ratio": 2.0, "emphasis": 0.0},
    {"ratio": 100.0, "emphasis": 0.3},
    {"aggregation": "sum", "label_temperature": 0.7},
    {"aggregation": "own", "temperature": 1.0},
    {"aggregation": "projection", "label_source": "frozen"},
    {"label_source": "frozen", "within": "batch"},
    {"within": "batch", "ratio": 3.0},
    {"ratio": 0.5},
    {"ratio": 0.3, "emphasis": 0.2},
    {"symmetric": False},
    {"length_gradient": True},
    {"predict_over": "all", "label_temperature": 0.3},
    {"label_similarity": "dot"},
    OLD,
    {**OLD, "ratio": 0.5},
    {**OLD, "ratio": 2.0, "emphasis": 0.0, "label_temperature": 1e6},
]


def drawn(count: int = COUNT) -> tuple[Tensor, Tensor, Tensor]:
    """z, g and p."""
    draw = torch.Generator().manual_seed(5)
    p, first, second = (torch.randn(count, LENGTH, generator=draw, dtype=torch.float64) for _ in range(3))
    return (p + 0.4 * first).requires_grad_(), p + 0.3 * second, p


def view(part: Any, g: Tensor, p: Tensor, batch: Batch) -> Any:
    heard = {"frozen": Output(p, p), "received": Output(g, g)}
    return SimpleNamespace(batch=batch, teachers={part.name: heard})


def batch_of(targets: Tensor, mask: Tensor | None = None) -> Batch:
    return Batch(torch.zeros(len(targets), 1), targets, mask=mask)


def value(part: Any, z: Tensor, g: Tensor, p: Tensor, batch: Batch) -> Tensor:
    params = {"intra-subject.projection": projection()}
    found: Tensor = part.loss(Output(z, z), params, view(part, g, p, batch))
    return found


def projection() -> Tensor:
    return torch.randn(LENGTH, 2 * LENGTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("subjects", [1, 3])
@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_intra_subject_against_loops(settings: dict[str, Any], subjects: int) -> None:
    z, g, p = drawn()
    targets = torch.arange(COUNT) % subjects
    found = value(IntraSubject(weight=0.6, **settings), z, g, p, batch_of(targets))
    wanted = 0.6 * insub(z, g, p, targets.tolist(), projection=projection(), **settings)
    assert float(found) == pytest.approx(float(wanted), rel=1e-9)
    (slope,), (expected,) = torch.autograd.grad(found, z), torch.autograd.grad(wanted, z)
    assert float((slope - expected).abs().max()) < 1e-9


@pytest.mark.parametrize("measure", ["cosine", "l2", "kl", "contrastive"])
def test_the_tie_against_loops(measure: Any) -> None:
    z, g, p = drawn()
    found = value(FeatureTie(0.4, measure, 0.7), z, g, p, batch_of(torch.zeros(COUNT, dtype=torch.int64)))
    wanted = 0.4 * tie(z, g, measure, 0.7)
    assert float(found) == pytest.approx(float(wanted), rel=1e-9)
    (slope,), (expected,) = torch.autograd.grad(found, z), torch.autograd.grad(wanted, z)
    assert float((slope - expected).abs().max()) < 1e-9


@pytest.mark.parametrize(
    "part", [IntraSubject(), IntraSubject(within="batch"), FeatureTie(measure="contrastive")], ids=str
)
@pytest.mark.parametrize("pad", [0, 1])
def test_padding_counts_for_nothing(part: Any, pad: int) -> None:
    z, g, p = drawn()
    targets = torch.arange(COUNT) % 2
    plain = value(part, z, g, p, batch_of(targets))
    longer = [torch.cat([rows, torch.full((3, LENGTH), 7.0 + pad, dtype=torch.float64)]) for rows in (z, g, p)]
    mask = torch.cat([torch.ones(COUNT), torch.zeros(3)]).double()
    padded = value(part, *longer, batch_of(torch.cat([targets, torch.tensor([pad, 5, 5])]), mask))  # type: ignore[arg-type]
    assert float(padded) == pytest.approx(float(plain), rel=1e-12)
    assert bool(torch.isfinite(torch.autograd.grad(padded, z)[0]).all())


def everybody(count: int = COUNT) -> Tensor:
    return torch.ones(count, count, dtype=torch.bool)


@pytest.mark.parametrize("settings", [{}, OLD, {"symmetric": False}], ids=str)
def test_labels_are_shares_of_images_that_are_near(settings: dict[str, Any]) -> None:
    _, g, p = drawn()
    labels, near = IntraSubject(**settings).soft_labels(g, p, everybody())
    assert torch.allclose(labels.sum(dim=1), torch.ones(COUNT, dtype=torch.float64))
    assert torch.equal(labels > 0, near)
    assert bool(near.diagonal().all())
    assert torch.equal(near, near.T) is (not settings)


def test_labels_of_dot_products_add_a_share_for_the_image_itself() -> None:
    _, g, p = drawn()
    part = IntraSubject(**OLD)
    labels, near = part.soft_labels(g, p, everybody())
    assert bool((labels.diagonal() >= 1 / part.ratio).all())
    assert bool((near.sum(dim=1) <= COUNT // part.ratio + 1).all())


@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0, 3.0])
def test_the_default_label_is_flatter_than_the_prediction(temperature: float) -> None:
    z, g, p = (rows.detach() for rows in drawn())
    a = (g + z) / 2
    labels, near = IntraSubject(temperature=temperature).soft_labels(a, p, everybody())
    cosines = torch.cosine_similarity(a[:, None], p[None], dim=2)
    predicted = (cosines / temperature).masked_fill(~near, -torch.inf).softmax(dim=1)
    assert bool((labels.amax(dim=1) < predicted.amax(dim=1)).all())
    entropies = [torch.special.entr(shares).sum(dim=1) for shares in (labels, predicted)]
    assert bool((entropies[0] > entropies[1]).all())


@pytest.mark.parametrize(("ratio", "count", "expected"), [
    (4.0, 20, 5), (0.25, 20, 5), (4.0, 6, 2), (4.0, 1, 1), (1.0, 7, 7), (3.0, 9, 3), (0.29, 100, 29), (0.9, 10, 9),
    (0.01, 10, 2), (1000.0, 10, 2),
])  # fmt: skip
def test_a_ratio_below_one_is_a_share(ratio: float, count: int, expected: int) -> None:
    assert IntraSubject(ratio=ratio).neighbors(torch.tensor(count)) == expected


def test_a_prediction_over_all_images_may_have_a_label_of_one() -> None:
    counts = torch.tensor([1, 6, 8])
    assert IntraSubject(ratio=4.0, predict_over="all").neighbors(counts).tolist() == [1, 1, 2]


def similarity(z: Tensor) -> Tensor:
    """The mean cosine between different images."""
    cosines = torch.cosine_similarity(z[:, None], z[None], dim=2)
    return (cosines.sum() - cosines.diagonal().sum()) / (len(z) * (len(z) - 1))


def features(kind: str, count: int, length: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """z, g and p of one person: unstructured, around a mean, in two groups, or after some training."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    p = normal(count, length)
    if kind != "unstructured":
        p = p + normal(length)
    if kind == "groups":
        p = p + 2 * normal(2, length)[torch.arange(count) % 2]
    noise = 0.3 if kind == "trained" else 0.0
    g = p + noise * normal(count, length)
    return g + noise * normal(count, length), g, p


def step_cosine(part: Any, z: Tensor, g: Tensor, p: Tensor) -> float:
    """The cosine of a step with the direction in which the images of the person become more similar."""
    z = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(part, z, g, p, batch_of(torch.zeros(len(z)).long())), z)
    (closer,) = torch.autograd.grad(similarity(z), z)
    return float(torch.cosine_similarity(-gradient.flatten(), closer.flatten(), dim=0))


@pytest.mark.parametrize("kind", ["unstructured", "mean", "groups", "trained"])
@pytest.mark.parametrize("length", [16, 64, 256])
@pytest.mark.parametrize("count", [4, 6, 16, 20, 64])
def test_a_step_brings_the_images_of_a_person_closer(count: int, length: int, kind: str) -> None:
    for seed in range(3):
        z, g, p = features(kind, count, length, seed)
        assert step_cosine(IntraSubject(), z, g, p) > 0.05
        moved = z.clone().requires_grad_()
        found = value(IntraSubject(), moved, g, p, batch_of(torch.zeros(count).long()))
        (gradient,) = torch.autograd.grad(found, moved)
        assert similarity(z - 0.1 * count * gradient) > similarity(z)


@pytest.mark.parametrize("count", [4, 6])
def test_a_step_of_the_label_of_dot_products_moves_them_apart(count: int) -> None:
    """The control: the measure detects a label that is sharper than the prediction."""
    for seed in range(3):
        assert step_cosine(IntraSubject(**OLD), *features("mean", count, 256, seed)) < -0.5


def test_equal_products_stay_together() -> None:
    zeros = torch.zeros(8, LENGTH)
    labels, _ = IntraSubject(ratio=4.0).soft_labels(zeros, zeros, everybody(8))
    assert bool((labels > 0).all())


def test_one_image_teaches_nothing() -> None:
    z, g, p = drawn(1)
    found = value(IntraSubject(), z, g, p, batch_of(torch.zeros(1, dtype=torch.int64)))
    assert float(found) == 0
    assert not torch.autograd.grad(found, z)[0].any()


def test_people_of_one_image_each_teach_nothing() -> None:
    z, g, p = drawn()
    assert float(value(IntraSubject(), z, g, p, batch_of(torch.arange(COUNT)))) == 0


def test_at_an_infinite_temperature_the_loss_is_constant() -> None:
    z, g, p = drawn()
    found = value(IntraSubject(1.0, ratio=1.0, temperature=1e12), z, g, p, batch_of(torch.zeros(COUNT).long()))
    assert float(found) == pytest.approx(torch.log(torch.tensor(float(COUNT))).item())
    assert float(torch.autograd.grad(found, z)[0].abs().max()) < 1e-11


def test_no_gradient_flows_through_labels_or_lengths() -> None:
    z, g, p = drawn()
    part = IntraSubject()
    a = (g + z) / 2
    labels, near = part.soft_labels(a.detach(), p, everybody())
    cosines = a @ (p / p.norm(dim=1, keepdim=True)).T / a.detach().norm(dim=1, keepdim=True)
    logs = (cosines / part.temperature).masked_fill(~near, -torch.inf).log_softmax(dim=1).masked_fill(~near, 0.0)
    held = -(labels * logs).sum(dim=1).mean() * part.weight
    found = value(part, z, g, p, batch_of(torch.zeros(COUNT).long()))
    assert torch.allclose(*(torch.autograd.grad(one, z)[0] for one in (found, held)), atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {"ratio": 0.0},
        {"ratio": -1.0},
        {"emphasis": 1.5},
        {"aggregation": "max"},
        {"temperature": 0.0},
        {"label_similarity": "l2"},
    ],
)
def test_nonsense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"the field '{next(iter(settings))}' of the part 'intra-subject' must be"):
        IntraSubject(**settings)
