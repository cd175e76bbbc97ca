"""A local step never waits for the device: no look at a value, no indexing by a condition, no number sent over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import toy
from fedra.algorithms import ENTRIES, fedarc, fedavg
from fedra.core.batches import AHEAD, LocalData
from fedra.core.model import Model
from fedra.core.program import ClientProgram
from fedra.core.transfer import to_device
from fedra.data.augment import Crop, Flip, Transform
from fedra.losses import LOSSES

WAITING = {"_local_scalar_dense", "item", "nonzero", "masked_select", "_unique2", "bincount", "is_nonzero"}
"""Operations whose result, or whose result's size, the host must know before it goes on."""

SENDING = {"lift_fresh"}
"""A tensor made of Python's numbers: on a GPU a copy that is waited for."""


class Watch(TorchDispatchMode):
    """Writes down every operation that would wait on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        by_condition = name in ("index", "index_put_") and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in WAITING | SENDING or by_condition:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_the_watch_sees_what_it_should() -> None:
    values = torch.arange(4.0)
    looks: list[Callable[[], Any]] = [
        lambda: values.sum().item(),
        lambda: float(values[0]),
        lambda: bool((values > 0).all()),
        lambda: values[values > 1],
        lambda: (values > 1).nonzero(),
        lambda: torch.as_tensor(0.5),
    ]
    for look in looks:
        with Watch() as watch:
            look()
        assert watch.seen, look


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What every local step of the test waited for."""
    found: list[list[str]] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            with Watch() as watch:
                result = function(*words, **named)
            found.append(watch.seen)
            return result

        return call

    for name in ("step", "advance"):
        monkeypatch.setattr(ClientProgram, name, watched(getattr(ClientProgram, name)))
    return found


@pytest.mark.parametrize("kind", [toy.mlp, toy.conv])
@pytest.mark.parametrize("name", ENTRIES)
def test_no_local_step_waits(name: str, kind: Callable[[], toy.Net], steps: list[list[str]]) -> None:
    toy.run(toy.job(ENTRIES[name].recipe(), kind()), cohorts=((0,),))
    assert steps
    assert not any(steps)


@pytest.mark.parametrize("name", LOSSES)
def test_no_margin_waits(name: str, steps: list[list[str]]) -> None:
    toy.run(toy.job(fedarc(margin=LOSSES[name]())), cohorts=((0,),))
    assert steps
    assert not any(steps)


@pytest.mark.parametrize("augment", [(), (Crop(1), Flip())])
def test_batches_come_without_waiting(augment: Any) -> None:
    """Draws are made on the CPU, whatever the device: their small tensors are brought without a look at a value."""
    data = toy.clients((1, 4, 4), transform=Transform(augment=augment))
    local = LocalData(data[0], Model(toy.conv()), toy.LOCAL, toy.CLASSES, 0, 0, 0)
    steps = iter(local)
    next(steps)
    with Watch() as watch:
        next(steps)
    assert watch.seen == []


def test_a_client_is_brought_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs and labels before the first step, the order of its rows once an epoch; nothing for a batch."""
    from fedra.core import batches

    calls: list[int] = []

    def counted(values: torch.Tensor, device: torch.device) -> torch.Tensor:
        calls.append(len(values))
        return to_device(values, device)

    monkeypatch.setattr(batches, "to_device", counted)
    work = toy.job(fedavg())
    local = LocalData(work.clients[0], work.model, toy.LOCAL, toy.CLASSES, 0, 0, 0)
    before = len(calls)
    assert before <= 4
    assert sum(1 for _ in local) == 6
    assert calls[before:] == [11, 11]


def test_large_clients_come_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedra.core import batches

    work = toy.job(fedavg())
    arguments = (work.clients[0], work.model, toy.LOCAL, toy.CLASSES, 0, 0, 0)
    whole = [batch.inputs for batch in LocalData(*arguments)]
    monkeypatch.setattr(batches, "AHEAD", 8)
    assert AHEAD > 8
    large = LocalData(*arguments)
    assert large.prepared is None
    assert all(torch.equal(left, batch.inputs) for left, batch in zip(whole, large, strict=True))
