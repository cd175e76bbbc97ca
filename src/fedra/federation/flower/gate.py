"""What the coordinator's port answers: eight calls of Flower's Fleet interface, in requests of bounded size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
PREFIX = "/v1/fleet/"
MAX_REQUEST = 6 * 2**20
"""Most bytes of one request: an object has 5 MB, and larger tensors are cut into several."""

SLOTS = 2
"""Objects that are worked on at the same time: parsing and hashing one takes several times its size in memory."""
PIECE = 2**18
"""Bytes that are handed to the network at a time."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Gate:
    """Refuses all other paths, requests without a length and large ones, before anything is read or parsed.

    Few objects are in memory, whatever the number of sites and however slow their lines: those that come or go are on
    the disk, and few are worked on at a time.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], folder: Path) -> None:
        self._app, self._folder = app, folder
        self._slots = asyncio.Semaphore(SLOTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        call = path.removeprefix(PREFIX)
        if scope["method"] != "POST" or call not in CALLS or not path.startswith(PREFIX):
            await _refuse(send, 404, "not here")
            return
        length = dict(scope["headers"]).get(b"content-length", b"")
        if not length.isdigit():
            await _refuse(send, 411, "a request must tell its length")
        elif int(length) > MAX_REQUEST:
            await _refuse(send, 413, f"a request must have at most {MAX_REQUEST:,} bytes, got {int(length):,}")
        elif call == "push-object":
            await self._take_object(scope, receive, send)
        elif call == "pull-object":
            await self._give_object(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _take_object(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read an upload to the disk, however slow its line is, and then hand it to the application."""
        with SpooledTemporaryFile(PIECE, dir=str(self._folder)) as file:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                file.write(message.get("body", b""))
                more = message.get("more_body", False)
            async with self._slots:
                file.seek(0)
                await self._app(scope, _whole(file.read()), send)

    async def _give_object(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application write an answer to the disk, and send it from there, however slow its line is."""
        with SpooledTemporaryFile(PIECE, dir=str(self._folder)) as file:

            async def keep(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    heads.append(message)
                else:
                    file.write(message.get("body", b""))

            heads: list[MutableMapping[str, Any]] = []
            async with self._slots:
                await self._app(scope, receive, keep)
            for head in heads:
                await send(head)
            left = file.tell()
            file.seek(0)
            while left:
                piece = file.read(PIECE)
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def _whole(body: bytes) -> Receive:
    """Return what gives a whole request to the application."""
    left = [body]

    async def receive() -> MutableMapping[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return {"type": "http.disconnect"}

    return receive


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
