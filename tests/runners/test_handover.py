"""Messages arrive as they were sent, through common memory or through the pipe."""

from __future__ import annotations

import gc
import multiprocessing
import weakref
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

from fedra.runners.handover import Channel, shared_memory


def message() -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    kernel = torch.randn(4, 3, 5, 5, generator=draw).to(memory_format=torch.channels_last)
    tensors = {"kernel": kernel, "count": torch.tensor(7), "none": torch.empty(0, 3), "half": torch.ones(2).bfloat16()}
    return {"tensors": tensors, "words": ("a", 1, None)}


def carried(size: int, what: Any) -> Any:
    """What comes out at the other end of a line with so much memory."""
    ours, theirs = multiprocessing.Pipe()
    memory = shared_memory(size) if size else np.empty(0, np.uint8)
    sender = Thread(target=Channel(ours, memory).send, args=(what,))
    sender.start()
    found = Channel(theirs, memory).receive()
    sender.join()
    memory[:] = 0  # the next message's
    return found


@pytest.mark.parametrize("size", [0, 200, 2600, 8192], ids=["no memory", "some", "just enough for one", "ample"])
def test_a_message_arrives_as_it_was_sent(size: int) -> None:
    sent, found = message(), carried(size, message())
    assert found["words"] == sent["words"]
    for name, value in sent["tensors"].items():
        assert found["tensors"][name].dtype == value.dtype
        assert torch.equal(found["tensors"][name], value)


def test_two_messages_on_the_way_do_not_touch_each_other() -> None:
    ours, theirs = multiprocessing.Pipe()
    memory = shared_memory(8192)
    sender, reader = Channel(ours, memory), Channel(theirs, memory)
    sender.send(torch.ones(500))
    sender.send(torch.zeros(500))
    assert torch.equal(reader.receive(), torch.ones(500))
    assert torch.equal(reader.receive(), torch.zeros(500))


def test_a_send_if_short_is_short_or_not_sent() -> None:
    ours, theirs = multiprocessing.Pipe()
    line = Channel(ours, shared_memory(8192))
    assert not line.send_if_short(torch.ones(2000))
    assert not theirs.poll()
    assert line.send_if_short({"client": 3, "few": torch.ones(3)})
    assert Channel(theirs, line.memory).receive()["few"].tolist() == [1, 1, 1]


def test_one_tensor_under_two_names_stays_one() -> None:
    value = torch.ones(3)
    found = carried(8192, {"a": value, "b": value})
    assert found["a"] is found["b"]


def test_what_arrived_may_be_written_to() -> None:
    found = carried(8192, torch.ones(3))
    assert found.add_(1).tolist() == [2, 2, 2]


def test_nothing_waits_for_the_garbage_collector() -> None:
    """A cycle would keep every upload of a round, and make memory grow with the cohort."""
    gc.disable()
    try:
        sent = torch.ones(3)
        found = carried(8192, sent)
        watched = [weakref.ref(sent), weakref.ref(found)]
        del sent, found
        assert [one() for one in watched] == [None, None]
    finally:
        gc.enable()
