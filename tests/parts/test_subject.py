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
from naive_subject import insub, tie

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


def test_labels_are_shares_that_favor_the_image_itself() -> None:
    _, g, p = drawn()
    part = IntraSubject()
    everybody = torch.ones(COUNT, COUNT, dtype=torch.bool)
    labels = part.soft_labels(g @ p.T, everybody, LENGTH)
    assert torch.allclose(labels.sum(dim=1), torch.ones(COUNT, dtype=torch.float64))
    assert bool((labels.diagonal() >= 1 / part.ratio).all())
    assert bool(((labels > 0).sum(dim=1) <= COUNT // part.ratio + 1).all())


def test_equal_products_stay_together() -> None:
    labels = IntraSubject(ratio=4.0).soft_labels(torch.zeros(8, 8), torch.ones(8, 8, dtype=torch.bool), LENGTH)
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


def test_the_frozen_and_the_received_features_get_no_gradient_through_labels() -> None:
    z, g, p = drawn()
    part = IntraSubject()
    batch = batch_of(torch.zeros(COUNT).long())
    labels = part.soft_labels(((g + z) / 2).detach() @ p.T, torch.ones(COUNT, COUNT, dtype=torch.bool), LENGTH)
    cosines = torch.cosine_similarity(((g + z) / 2)[:, None], p[None], dim=2)
    held = -(labels * (cosines / part.temperature).log_softmax(dim=1)).sum(dim=1).mean() * part.weight
    found = value(part, z, g, p, batch)
    assert torch.allclose(*(torch.autograd.grad(one, z)[0] for one in (found, held)), atol=1e-12)


@pytest.mark.parametrize("settings", [{"ratio": 0.5}, {"emphasis": 1.5}, {"aggregation": "max"}, {"temperature": 0.0}])
def test_nonsense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"the field '{next(iter(settings))}' of the part 'intra-subject' must be"):
        IntraSubject(**settings)
