"""Flower's objects: messages are put together within their bounds; slow lines hold neither memory nor other sites."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
import weakref
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from fedra.federation.flower import private_names
from fedra.federation.flower.gate import PREFIX, SLOTS, Gate
from fedra.federation.wire import Packet, WireError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # flwr imports typer, which asks click for old names
    from flwr.app import Array, Message

    from fedra.federation.flower import calls
    from fedra.federation.flower.flower_codec import RecordCodec
    from fedra.federation.flower.link_state import LinkState
    from fedra.federation.flower.objects import PUSHES, assemble, push_objects

CHUNK = 5 * 2**20


def objects_of(packet: Packet, folder: Path) -> tuple[str, dict[str, bytes]]:
    """A message's name, and the contents of its objects by their names."""
    LinkState(folder / "spool")  # Flower makes messages for the task of a link state alone
    message = Message(RecordCodec().to_records(packet), 1, "query.fedra")
    found = private_names.load("get_all_nested_objects")(message)
    return message.object_id, {name: one.deflate() for name, one in found.items()}


def test_a_message_is_put_together_and_its_chunks_are_forgotten(tmp_path: Path) -> None:
    same = os.urandom(CHUNK)
    packet = Packet("train", "{}", {"shared": same + same + b"end" * 10**5, "own": same + b"own" * 10**5, "few": b"1"})
    name, contents = objects_of(packet, tmp_path)
    gc.collect()
    gc.disable()
    try:
        assert assemble(name, lambda one, last: contents.pop(one) if last else contents[one]) == packet
        assert contents == {}
        large = set(packet.blobs.values())
        assert not any(type(one) is Array and one.data in large for one in gc.get_objects())
    finally:
        gc.enable()


def test_an_array_that_names_one_chunk_many_times_is_refused(tmp_path: Path) -> None:
    """A message of a few megabytes would otherwise become one of any size in the coordinator's memory."""
    name, contents = objects_of(Packet("train", "{}", {"own": os.urandom(10**6)}), tmp_path)
    array = next(one for one, content in contents.items() if content.startswith(b"Array "))
    many = b'"arraychunk_ids": [' + b", ".join([b"0"] * 10**5) + b"]"
    contents[array] = contents[array].replace(b'"arraychunk_ids": [0]', many)
    with pytest.raises(WireError, match="at most 20,000,000 bytes, got more"):
        assemble(name, lambda one, last: contents[one], 20_000_000)


@pytest.mark.parametrize("content", [b"", b"Array  9\0{}", b"Array  2\0{}", b"RecordDict " + b"0" * 64 + b" 0\0"])
def test_objects_of_another_form_are_refused(content: bytes) -> None:
    with pytest.raises(WireError, match="the message cannot be read"):
        assemble("a", lambda one, last: {"a": content}[one])


def test_an_answer_is_turned_into_bytes_piece_by_piece() -> None:
    """A site has room for the model, not for another copy of it in chunks."""
    ahead, most, lock = 0, 0, threading.Lock()

    class One:
        def deflate(self) -> bytes:
            nonlocal ahead, most
            with lock:
                ahead += 1
                most = max(most, ahead)
            return b"content"

    sent: list[str] = []

    def push(name: str, content: bytes) -> None:
        nonlocal ahead
        with lock:
            ahead -= 1
            sent.append(name)

    objects: dict[str, Any] = {f"{number}": One() for number in range(20)}
    push_objects(objects, {f"{number}" for number in range(0, 20, 2)}, push)
    assert sorted(sent, key=int) == [f"{number}" for number in range(0, 20, 2)]
    assert most <= PUSHES
    assert len(objects) == 10


def test_sites_on_slow_lines_hold_no_one_up(tmp_path: Path) -> None:
    """More downloads than the coordinator works on at a time: each waits on the disk for its line."""
    body, count = os.urandom(10**6), 10 * SLOTS
    arrived: list[bytes] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body[:1], "more_body": True})
        await send({"type": "http.response.body", "body": body[1:]})

    async def run() -> None:
        gate, waiting, all_wait = Gate(application, tmp_path), 0, asyncio.Event()

        async def download() -> None:
            pieces: list[bytes] = []

            async def send(message: MutableMapping[str, Any]) -> None:
                nonlocal waiting
                if message["type"] == "http.response.start":
                    waiting += 1
                    if waiting == count:
                        all_wait.set()
                    await asyncio.wait_for(all_wait.wait(), 20)
                pieces.append(message.get("body", b""))

            scope = {"type": "http", "method": "POST", "path": f"{PREFIX}pull-object"}
            await gate({**scope, "headers": [(b"content-length", b"10")]}, None, send)  # type: ignore[arg-type]
            arrived.append(b"".join(pieces))

        await asyncio.gather(*(download() for _ in range(count)))

    asyncio.run(run())
    assert arrived == [body] * count
    assert list(tmp_path.iterdir()) == []


def test_a_request_is_forgotten_when_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the garbage collector: a request and its answer have a model's size."""
    known: list[weakref.ref[Any]] = []

    class Large:
        def __init__(self) -> None:
            known.append(weakref.ref(self))

        def ParseFromString(self, body: bytes) -> None:
            assert body == b"request"

        def SerializeToString(self) -> bytes:
            return b"answer"

    monkeypatch.setattr(calls, "authenticate", lambda request: None)
    call = calls.Call(Large, lambda message, http: Large())
    application = calls.Calls({"pull-object": call}, None, lambda message, http: None)
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": f"{PREFIX}pull-object", "headers": []}
    gc.collect()
    gc.disable()
    try:
        asyncio.run(application({**scope, "query_string": b"", "server": ("here", 1)}, receive, send))
        assert [message.get("body") for message in sent] == [None, b"answer"]
        assert len(known) == 2
        assert [one() for one in known] == [None, None]
    finally:
        gc.enable()


def test_the_canary_says_what_went(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(private_names.PRIVATE, "gone", "flwr.common.constant")
    monkeypatch.setitem(private_names.ATTRIBUTES, "fleet_handlers", ("pull_object", "gone_too"))
    assert private_names.find_missing() == [
        "flwr.common.constant.gone",
        "flwr.superlink.servicer.fleet.fleet_handlers.gone_too",
    ]
