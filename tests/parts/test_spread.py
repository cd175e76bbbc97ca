"""The server's correction of class embeddings: closed forms against autograd and against plain double loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedra.algorithms import fedavg
from fedra.algorithms.fedgc import CrossClientCosine
from fedra.core.ownership import Owners
from fedra.errors import ConfigError
from fedra.losses import AdaptiveMargin, ArcFace, CosFace
from fedra.parts import spread
from fedra.parts.spread import CrossClientSoftmax, Hinge, SpreadOut

CLASSES, WIDTH = 11, 5
SETS = {
    "one owner each": [[0, 1, 2], [3, 4, 5, 6], [7], [8, 9, 10]],
    "shared identities": [[0, 1, 2], [2, 3, 4], [5, 6, 7, 0], [8, 9]],
    "one class a client": [[label] for label in range(CLASSES)],
}


def owners_of(sets: list[list[int]]) -> Owners:
    return Owners([torch.tensor(own) for own in sets], CLASSES)


def related(sets: list[list[int]], a: int, b: int) -> bool:
    return a == b or any(a in own and b in own for own in sets)


def rows_of(seed: int = 0) -> Tensor:
    return torch.randn(CLASSES, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def softmax_loss(rows: Tensor, sets: list[list[int]], margin: object, scale: float, at_zero: float) -> Tensor:
    """Eq. 5 as a double loop; primes are detached."""
    kept = rows.detach()
    if margin is not None:
        rows, kept = F.normalize(rows, dim=1), F.normalize(kept, dim=1)
    total = rows.new_zeros(())
    for a in range(CLASSES):
        own = rows[a] @ kept[a] if margin is None else rows.new_tensor(scale * at_zero)
        others = [scale * (rows[b] @ kept[a]) for b in range(CLASSES) if not related(sets, a, b)]
        total = total - own + torch.logsumexp(torch.stack([own, *others]), dim=0)
    return total


@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
@pytest.mark.parametrize(
    ("margin", "scale", "at_zero"),
    [
        (None, 1.0, 0.0),
        (CosFace(scale=8.0, margin=0.35), 8.0, 1 - 0.35),
        (ArcFace(scale=8.0, margin=0.5), 8.0, math.cos(0.5)),
        (AdaptiveMargin(scale=8.0, m1=0.03, m2=0.5), 8.0, math.cos(0.5)),
    ],
)
def test_softmax_penalty_is_the_gradient_of_a_double_loop(
    sets: list[list[int]], margin: CosFace | ArcFace | AdaptiveMargin | None, scale: float, at_zero: float
) -> None:
    rows = rows_of().requires_grad_()
    (expected,) = torch.autograd.grad(softmax_loss(rows, sets, margin, scale, at_zero), rows)
    found = CrossClientSoftmax(margin).gradient(rows.detach(), owners_of(sets), drawn(), None)
    floor = 1e-5 if isinstance(margin, ArcFace | AdaptiveMargin) else 1e-12  # their sine has a floor of 1e-6
    assert torch.allclose(found, expected, rtol=0, atol=floor)


def test_softmax_penalty_is_the_paper_s_closed_form() -> None:
    rows, sets = rows_of(), SETS["one owner each"]
    logits = rows @ rows.T
    for a in range(CLASSES):
        for b in range(CLASSES):
            if a != b and related(sets, a, b):
                logits[a, b] = -math.inf
    share = torch.softmax(logits, dim=1)
    found = CrossClientSoftmax().gradient(rows, owners_of(sets), drawn(), None)
    assert torch.allclose(found, share.T @ rows - rows, rtol=0, atol=1e-12)
    without = CrossClientSoftmax(self_term=False).gradient(rows, owners_of(sets), drawn(), None)
    assert torch.allclose(without, (share - torch.diag(share.diag())).T @ rows, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
def test_cosine_penalty(sets: list[list[int]]) -> None:
    rows = rows_of().requires_grad_()
    unit = F.normalize(rows, dim=1)
    pairs = [(a, b) for a in range(CLASSES) for b in range(CLASSES) if not related(sets, a, b)]
    loss = torch.stack([unit[b] @ unit[a].detach() for a, b in pairs]).sum()
    (expected,) = torch.autograd.grad(loss, rows)
    found = CrossClientCosine().gradient(rows.detach(), owners_of(sets), drawn(), None)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
def test_hinge_penalty(sets: list[list[int]]) -> None:
    rows = rows_of().requires_grad_()
    unit = F.normalize(rows, dim=1)
    pairs = [(a, b) for a in range(CLASSES) for b in range(CLASSES) if not related(sets, a, b)]
    loss = torch.stack([torch.relu(unit[a] @ unit[b] - 0.1) ** 2 for a, b in pairs]).mean()
    (expected,) = torch.autograd.grad(loss, rows)
    found = Hinge(0.1, reduction="mean").gradient(rows.detach(), owners_of(sets), drawn(), None)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_hinge_is_still_below_its_threshold_and_mines_the_nearest() -> None:
    rows, owners = rows_of(), owners_of(SETS["one class a client"])
    assert not Hinge(1.0).gradient(rows, owners, drawn(), None).any()
    unit = F.normalize(rows, dim=1)
    likeness = (unit @ unit.T).fill_diagonal_(-1.0)
    kept = torch.zeros_like(likeness)
    for a in range(CLASSES):
        best = int(likeness[a].argmax())
        kept[a, best] = 2 * max(float(likeness[a, best]) - 0.1, 0.0)
    expected = spread.through_normalization(kept @ unit + kept.T @ unit, rows)
    assert torch.allclose(Hinge(0.1, nearest=1).gradient(rows, owners, drawn(), None), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("penalty", [CrossClientSoftmax(), CrossClientSoftmax(ArcFace(scale=8.0)), Hinge(0.1)])
@pytest.mark.parametrize("height", [1, 3, 7])
def test_blocks_change_nothing(penalty: spread.Penalty, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, owners = rows_of(), owners_of(SETS["shared identities"])
    whole = penalty.gradient(rows, owners, drawn(), None)
    monkeypatch.setattr(spread, "BLOCK_BYTES", height * CLASSES * 8)
    assert torch.allclose(penalty.gradient(rows, owners, drawn(), None), whole, rtol=0, atol=1e-12)


def test_one_client_alone_feels_nothing_from_itself() -> None:
    rows, owners = rows_of(), owners_of([list(range(CLASSES))])
    for penalty in (CrossClientSoftmax(), CrossClientSoftmax(CosFace()), CrossClientCosine(), Hinge(-1.0)):
        assert torch.allclose(penalty.gradient(rows, owners, drawn(), None), torch.zeros_like(rows), atol=1e-12)


def test_samples_are_drawn_anew_but_by_the_generator_alone() -> None:
    rows, owners = rows_of(), owners_of(SETS["one owner each"])
    penalty = CrossClientSoftmax(CosFace(scale=4.0))
    some = [penalty.gradient(rows, owners, torch.Generator().manual_seed(seed), 4) for seed in (0, 0, 1)]
    assert torch.equal(some[0], some[1])
    assert not torch.equal(some[0], some[2])
    everything = penalty.gradient(rows, owners, drawn(), None)
    assert torch.allclose(penalty.gradient(rows, owners, drawn(), CLASSES + 5), everything)


def test_sampled_rows_of_the_same_client_never_meet() -> None:
    rows, owners = rows_of(), owners_of([list(range(CLASSES))])
    assert not CrossClientSoftmax(self_term=False).gradient(rows, owners, drawn(), 6).any()


def test_a_step_parts_clients_and_needs_owned_rows() -> None:
    with pytest.raises(ConfigError, match="must be owned by clients"):
        fedavg().plus(SpreadOut())


def test_owners_among_some_classes() -> None:
    owners = owners_of(SETS["shared identities"])
    kept = torch.tensor([2, 3, 5, 8, 10])
    few = owners.among(kept)
    whole = owners.related(torch.arange(CLASSES), None)
    assert torch.equal(few.related(torch.arange(5), None), whole[kept][:, kept])
    for a in range(CLASSES):
        for b in range(CLASSES):
            assert bool(whole[a, b]) is related(SETS["shared identities"], a, b)
