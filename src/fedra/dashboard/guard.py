"""Protects the dashboard from other web pages: only its own pages may read it, and nothing can write.

A page on the web can make a browser send requests to this machine. It is refused by three headers that the browser
sets and a page cannot change: Host (its name could be made to resolve to this machine), Origin and Sec-Fetch-Site.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SAFETY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def refusal(method: str, headers: Headers) -> tuple[int, str] | None:
    """Return the status and the reason with which a request is refused, or None."""
    if method not in ("GET", "HEAD"):
        return 405, f"the dashboard only reads: the method must be GET, got {method}"
    host = headers.get("host", "")
    if _hostname(f"//{host}") not in LOOPBACK:
        return 421, f"the host must be this machine (127.0.0.1 or localhost), got '{host}'"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return 403, f"the origin must be the dashboard itself, got '{origin}'"
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_link:
        return 403, "the dashboard can only be read by its own pages, got a request of another site"
    return None


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


class Guard:
    """Refuses foreign requests, and adds headers that restrict what a page may do."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no web sockets

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SAFETY)
            await send(message)

        refused = refusal(scope["method"], Headers(scope=scope))
        app = self._app if refused is None else PlainTextResponse(f"{refused[1]}\n", refused[0])
        await app(scope, receive, send_safely)
