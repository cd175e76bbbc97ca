"""A client's batches: every example once an epoch, in an order that depends on nothing but its key."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import toy
from fedra.core import batches
from fedra.core.batches import Examples, LocalData
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model
from fedra.core.random import shuffles
from fedra.errors import DataError

MODEL = Model(toy.mlp())


@dataclass(frozen=True)
class Noise:
    """Adds a draw to every batch."""

    deterministic: bool = False

    def prepare(self, inputs: Tensor) -> Tensor:
        return inputs

    def batch(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return inputs + torch.rand(inputs.shape, generator=generator)


def local(
    training: LocalTraining, count: int = 11, transform: object = None, round: int = 0, client: int = 0
) -> LocalData:
    inputs = torch.arange(count).double().repeat_interleave(5).view(count, 5)
    own = Examples(inputs, torch.arange(count) % toy.CLASSES)
    if transform is not None:
        own = Examples(own.inputs, own.targets, transform)  # type: ignore[arg-type]
    return LocalData(own, MODEL, training, toy.CLASSES, 5, round, client)


def rows(data: LocalData) -> list[int]:
    return [int(row) for batch in data for row in batch.inputs[:, 0]]


@given(st.integers(1, 60), st.integers(1, 20) | st.none(), st.booleans(), st.integers(1, 3))
def test_portions(examples: int, batch: int | None, drop_last: bool, epochs: int) -> None:
    schedule = LocalTraining(epochs=epochs, batch=batch, drop_last=drop_last)
    cuts = schedule.batch_ranges(examples)
    assert cuts[0][0] == 0
    assert all(end == start for (_, end), (start, _) in pairwise(cuts))
    sizes = [end - start for start, end in cuts]
    assert all(size == (batch or examples) for size in sizes[:-1])
    if drop_last and examples >= (batch or examples):
        assert sizes[-1] == (batch or examples)
    else:
        assert cuts[-1][1] == examples
    assert schedule.steps(examples) == epochs * len(cuts)


def test_every_epoch_shows_every_example_once_in_an_order_of_its_own() -> None:
    seen = rows(local(LocalTraining(epochs=2, batch=4)))
    assert sorted(seen[:11]) == sorted(seen[11:]) == list(range(11))
    assert seen[:11] != seen[11:]


def test_the_order_depends_on_round_and_client_alone() -> None:
    one = rows(local(LocalTraining(batch=4)))
    assert rows(local(LocalTraining(batch=4))) == one
    assert rows(local(LocalTraining(batch=11))) == one
    assert rows(local(LocalTraining(batch=4), round=1)) != one
    assert rows(local(LocalTraining(batch=4), client=1)) != one


def test_a_batch_knows_its_rows_unless_drawn() -> None:
    data = local(LocalTraining(batch=4))
    assert data.prepared is not None
    for batch in data:
        assert batch.index is not None
        assert torch.equal(data.prepared[batch.index], batch.inputs)
        assert torch.equal(data.targets[batch.index], batch.targets)
    drawn = local(LocalTraining(batch=4), transform=Noise())
    assert drawn.prepared is None
    first, again = ([batch.inputs for batch in drawn] for _ in range(2))
    assert all(batch.index is None for batch in drawn)
    assert torch.equal(torch.cat(first), torch.cat(again))


def test_counts_its_labels() -> None:
    assert local(LocalTraining()).label_counts.tolist() == [3, 3, 3, 2]


def test_inputs_take_the_models_type_and_whole_numbers_stay() -> None:
    floats = LocalData(Examples(torch.ones(2, 5), torch.zeros(2).long()), MODEL, LocalTraining(), 4, 0, 0, 0)
    words = LocalData(Examples(torch.ones(2, 5).long(), torch.zeros(2).long()), MODEL, LocalTraining(), 4, 0, 0, 0)
    assert next(iter(floats)).inputs.dtype == torch.float64
    assert next(iter(words)).inputs.dtype == torch.int64


@pytest.mark.parametrize("batch", [4, None])
def test_a_client_without_examples_is_refused(batch: int | None) -> None:
    with pytest.raises(DataError, match="at least one example, got none for client 3"):
        local(LocalTraining(batch=batch), count=0, client=3)


def test_the_orders_of_many_epochs_are_made_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "EPOCHS_AHEAD", 3)
    whole = shuffles(5, 2, [7], [11], 8)
    for some in (range(8), range(3, 6), range(7, 8)):
        assert (shuffles(5, 2, [7], [11], some) == whole[some.start : some.stop]).all()
    data = object.__new__(batches.LocalData)
    data._local, data._examples = LocalTraining(epochs=8), Examples(torch.zeros(11, 1), torch.zeros(11))
    found = list(data._orders(5, 2, 7))
    assert [epoch for epoch, _ in found] == list(range(8))
    assert (torch.stack([order for _, order in found]).numpy() == whole).all()
    data._local = LocalTraining(epochs=10**6)
    assert next(data._orders(5, 2, 7))[0] == 0  # at once, without a million orders
