"""Uploads side by side are the uploads one by one."""

from __future__ import annotations

import pytest
import torch

from fedra.core import tree
from fedra.core.tree import accumulate, accumulate_rows, accumulate_stack
from fedra.core.uploads import Uploads
from fedra.core.view import Upload


def stack(clients: int = 3) -> Uploads:
    draw = torch.Generator().manual_seed(0)
    return Uploads(
        delta={"w": torch.randn(clients, 2, 3, generator=draw), "b": torch.randn(clients, generator=draw)},
        buffers={"seen": torch.arange(clients)},
        examples=[5 + k for k in range(clients)],
        steps=[1] * clients,
        effective_steps=[1.0 + k for k in range(clients)],
        extras={"part": {"c": torch.randn(clients, 4, generator=draw)}},
        metrics={"train_loss": [0.1 * k for k in range(clients)]},
        broken_step=[None] * clients,
    )


def facts(upload: Upload) -> tuple[object, ...]:
    return (upload.examples, upload.steps, upload.effective_steps, upload.metrics, upload.broken_step)


def same(left: Upload, right: Upload) -> bool:
    pairs = [(left.delta, right.delta), (left.buffers, right.buffers), (left.extras, right.extras)]
    flat = [(tree.flatten(one), tree.flatten(other)) for one, other in pairs]
    tensors = all(
        one.keys() == other.keys() and all(map(torch.equal, one.values(), other.values())) for one, other in flat
    )
    return tensors and facts(left) == facts(right)


def test_a_stack_of_one_holds_that_one() -> None:
    for upload in stack():
        alone = Uploads.of(upload)
        assert len(alone) == 1
        assert same(alone[0], upload)


def test_places_are_picked_in_the_order_asked_for() -> None:
    whole = stack()
    some = whole.select([2, 0])
    assert len(some) == 2
    assert same(some[0], whole[2])
    assert same(some[1], whole[0])
    assert whole.select([0, 1, 2]) is whole


@pytest.mark.parametrize("where", ["delta", "extras", "scalar"])
def test_what_is_not_finite_is_found_client_by_client(where: str) -> None:
    whole = stack()
    assert whole.finite == [True, True, True]
    broken = stack()
    value = {"delta": broken.delta["w"], "extras": broken.extras["part"]["c"], "scalar": broken.delta["b"]}[where]
    value[1] = torch.nan
    assert broken.finite == [True, False, True]


def test_nothing_at_all_is_finite() -> None:
    assert Uploads(
        delta={},
        buffers={},
        examples=[1, 2],
        steps=[1, 1],
        effective_steps=[1.0, 1.0],
        extras={},
        metrics={},
        broken_step=[None, None],
    ).finite == [True, True]


def test_bytes_are_those_of_one() -> None:
    assert stack().bytes_each == (6 + 1) * 4 + 8 + 4 * 4


def test_stacks_add_up_as_their_slices_do() -> None:
    first, more = stack(4), stack(2)
    total = accumulate_stack({}, first.delta, [1.0, 2.0, 0.5, 3.0])
    total = accumulate_stack(total, more.delta, [4.0, 1.0])
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 4.0, 1.0])
    for name, value in total.items():
        rows = torch.cat([first.delta[name], more.delta[name]])
        assert torch.allclose(value, torch.tensordot(weights, rows, 1), atol=1e-5)
    assert accumulate_stack({}, {}, [1.0]) == {}


@pytest.mark.parametrize("weights", [[0.3] * 7, [0.1, 0.1, -2.0, 0.7, 0.7, 0.7, 1.0]], ids=["equal", "different"])
def test_rows_add_up_to_the_bits_of_one_after_another(weights: list[float]) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = {"matrix": (7, 33, 5), "vector": (7, 9), "scalar": (7,)}
    stacks = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    one_by_one: dict[str, torch.Tensor] = {}
    for row, weight in enumerate(weights):
        one_by_one = accumulate(one_by_one, {name: value[row] for name, value in stacks.items()}, weight)
    first = accumulate_rows({}, {name: value[:3] for name, value in stacks.items()}, weights[:3])
    total = accumulate_rows(first, {name: value[3:] for name, value in stacks.items()}, weights[3:])
    assert all(torch.equal(total[name], one_by_one[name]) for name in shapes)


def test_a_change_whose_squares_overflow_is_still_finite() -> None:
    whole = stack()
    whole.delta["w"][1] = 1e30
    assert whole.update_norms[1] == float("inf")
    assert whole.finite == [True, True, True]
