"""What the coordinator's port answers: eight calls of Flower's Fleet interface, in requests of bounded size."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
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

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Gate:
    """Refuses all other paths, requests without a length and large ones, before anything is read or parsed."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if scope["method"] != "POST" or path.removeprefix(PREFIX) not in CALLS or not path.startswith(PREFIX):
            await _refuse(send, 404, "not here")
            return
        length = dict(scope["headers"]).get(b"content-length", b"")
        if not length.isdigit():
            await _refuse(send, 411, "a request must tell its length")
        elif int(length) > MAX_REQUEST:
            await _refuse(send, 413, f"a request must have at most {MAX_REQUEST:,} bytes, got {int(length):,}")
        else:
            await self._app(scope, receive, send)


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
