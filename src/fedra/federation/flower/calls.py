"""The calls of Flower's Fleet interface as an application: parse, authenticate, answer, and keep nothing.

Flower's own application wraps every request three times, in a way that leaves its content to Python's garbage
collector: an exchange of a model held three more models in memory. Here a request is forgotten when it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from fastapi import HTTPException, Request, Response
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from starlette.concurrency import run_in_threadpool

from fedra.federation.flower.private_names import load

PROTOBUF = "application/protobuf"

authenticate = load("authenticate_node")
translate_errors = load("http_error_translator")


@dataclass(frozen=True)
class Call:
    """A call: the type of its request, and what answers it; `holds` if that is a coroutine, which may wait."""

    request: Any
    answer: Callable[[Any, Request], Any]
    holds: bool = False


class Calls:
    """Answers calls by the last part of their path; the gate lets no others through.

    Args:
        calls: The calls by their names.
        links: Flower's link states, which know the keys of nodes.
        check: Called with each authenticated message and its request, before it is answered; raises to refuse it.
    """

    def __init__(self, calls: Mapping[str, Call], links: Any, check: Callable[[Any, Request], None]) -> None:
        self._calls, self._check = calls, check
        self._app = SimpleNamespace(state=SimpleNamespace(linkstate_factory=links))

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        request = Request({**scope, "app": self._app, "state": {}}, receive)
        response = await translate_errors(request, self._answer)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        call = self._calls[request.url.path.rpartition("/")[2]]
        body = [await _read(request)]
        if call.holds:
            message = await run_in_threadpool(self._open, call, request, body)
            return _respond(await call.answer(message, request))
        return await run_in_threadpool(lambda: _respond(call.answer(self._open(call, request, body), request)))

    def _open(self, call: Call, request: Request, body: list[bytes]) -> Any:
        """Parse and authenticate a message."""
        message = call.request()
        try:
            message.ParseFromString(body.pop())
        except DecodeError:
            raise HTTPException(400, "the request cannot be read") from None
        request.state.protobuf_request = message
        authenticate(request)
        del request.state.protobuf_request  # an idle thread may remember its last request for long
        self._check(message, request)
        return message


async def _read(request: Request) -> bytes:
    """Return the body, which the request would keep."""
    return b"".join([piece async for piece in request.stream()])


def _respond(message: Any) -> Response:
    return Response(message.SerializeToString(), media_type=PROTOBUF)
