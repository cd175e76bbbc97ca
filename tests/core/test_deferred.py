"""Deferred inputs behave like the tensor that they stand for, and read only what is moved or computed with."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from fedra.core.batches import Examples
from fedra.core.deferred import DeferredInputs, JoinedSource, read_ahead
from fedra.core.transfer import to_device
from fedra.runners.packing import pack, unpack


@dataclass(eq=False)
class Counting:
    """A source that counts the rows it reads; every value of a row is the row's number."""

    count: int
    done: list[int] = field(default_factory=list)
    readers: list[str] = field(default_factory=list)
    shape: tuple[int, ...] = (2, 3)
    dtype: torch.dtype = torch.uint8

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Tensor, threads: int) -> Tensor:
        self.done += rows.tolist()
        self.readers.append(threading.current_thread().name)
        return rows.to(torch.uint8).view(-1, 1, 1).expand(-1, *self.shape).contiguous()


def whole(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.uint8).view(-1, 1, 1).expand(-1, 2, 3).contiguous()


SELECTIONS = {
    "rows": lambda x: x[torch.tensor([4, 1, 1])],
    "mask": lambda x: x[torch.arange(9) % 3 == 0],
    "slice": lambda x: x[2:7],
    "slice with a step": lambda x: x[1::2],
    "list": lambda x: x[[3, 2]],
    "nothing": lambda x: x[:0],
    "rows of rows": lambda x: x[2:][torch.tensor([0, -1])],
    "split": lambda x: torch.split(x, [2, 3, 4])[1],
    "equal split": lambda x: torch.split(x, 4)[2],
    "index_select": lambda x: x.index_select(0, torch.tensor([8, 0])),
    "cat": lambda x: torch.cat([x[5:], x[:2]]),
    "cat with a tensor": lambda x: torch.cat([x[5:], whole(2)]),
    "part of a cat": lambda x: torch.cat([whole(2), x])[torch.tensor([10, 0, 1, 5])],
    "one side of a cat": lambda x: torch.cat([whole(2), x])[3:6],
    "detach": lambda x: x.detach()[:2],
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_read_nothing_and_equal_those_of_a_tensor(name: str) -> None:
    source = Counting(9)
    chosen, expected = SELECTIONS[name](DeferredInputs(source)), SELECTIONS[name](whole(9))
    assert isinstance(chosen, DeferredInputs)
    assert not source.done
    assert (chosen.shape, chosen.dtype, chosen.nbytes, len(chosen)) == (
        expected.shape,
        expected.dtype,
        expected.nbytes,
        len(expected),
    )
    read = to_device(chosen, torch.device("cpu"))
    assert type(read) is Tensor
    assert torch.equal(read, expected)
    assert len(source.done) <= len(expected)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x[3],
        lambda x: x[torch.tensor(3)],
        lambda x: x[torch.tensor([[1, 2], [3, 4]])],
        lambda x: x.to(torch.float32),
        lambda x: x.flip(-1),
        lambda x: x[..., 1:],
        lambda x: torch.cat([x, x], dim=1),
        lambda x: x.contiguous() + 1,
        lambda x: torch.from_numpy(x.numpy()),
        lambda x: x.cpu(),
    ],
)
def test_other_operations_read(compute: object) -> None:
    found, expected = compute(DeferredInputs(Counting(9))), compute(whole(9))  # type: ignore[operator]
    assert type(found) is Tensor
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


def test_single_rows_read_one_row() -> None:
    source = Counting(9)
    inputs = DeferredInputs(source)
    assert int(inputs[3].max()) == int(inputs[torch.tensor(3)].min()) == 3
    assert source.done == [3, 3]


def test_the_next_selection_is_read_by_another_thread() -> None:
    source = Counting(9)
    batches = read_ahead(DeferredInputs(source), iter([torch.tensor([0, 1]), torch.tensor([5]), torch.tensor([7])]))
    assert [to_device(batch, torch.device("cpu"))[:, 0, 0].tolist() for batch in batches] == [[0, 1], [5], [7]]
    assert source.done == [0, 1, 5, 7]  # each once
    assert all(name.startswith("read-ahead") for name in source.readers)


def test_plain_tensors_are_not_selected_ahead() -> None:
    started: list[int] = []

    def selections() -> object:
        for row in range(3):
            started.append(row)
            yield torch.tensor([row])

    batches = read_ahead(whole(3), selections())  # type: ignore[arg-type]
    next(batches)
    assert started == [0]


def test_what_is_sent_to_workers_has_no_inputs() -> None:
    inputs = DeferredInputs(Counting(200))[100:]
    for copy in (pickle.loads(pickle.dumps(inputs)), unpack(pack(inputs, pickle.Pickler))):
        assert isinstance(copy, DeferredInputs)
        assert not copy.source.done
        assert torch.equal(copy.cpu(), whole(200)[100:])
    packed = pack(Examples(inputs, torch.zeros(100, dtype=torch.int64)), pickle.Pickler)
    assert {array.dtype.name for array in packed.arrays} == {"int64"}  # row numbers and labels


def test_a_selection_from_one_part_forgets_the_others() -> None:
    first = DeferredInputs(Counting(4))
    joined = torch.cat([first, DeferredInputs(Counting(3))])
    assert isinstance(joined, DeferredInputs)
    assert isinstance(joined.source, JoinedSource)
    only = joined[:4]
    assert isinstance(only, DeferredInputs)
    assert only.source is first.source
