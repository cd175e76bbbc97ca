"""A site's side of the Fleet interface: signed calls, repeated when the connection breaks. It needs no torch."""

from __future__ import annotations

import secrets
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from fedra.federation.flower.node_sessions import SESSION_HEADER
from fedra.federation.flower.private_names import load

HEARTBEAT = 10.0
"""Seconds between two signs of life."""
SKEW = 3.0
"""Seconds by which clocks may differ before a site corrects its own by the coordinator's."""

FleetHttpClient = load("FleetHttpClient")


class SignedCalls:
    """Signs the time of every call with the site's key, and names this process; the time is the coordinator's."""

    def __init__(self, key: Any) -> None:
        self._key, self._public = key, load("public_key_to_bytes")(key.public_key())
        self._session = secrets.token_hex(16)
        self.ahead = timedelta(0)

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Add the signature to a call."""
        stamp = (datetime.now(UTC) - self.ahead).isoformat()
        signature = load("sign_message")(self._key, stamp.encode("ascii"))
        context.request.headers[load("FLEET_HTTP_PUBLIC_KEY_HEADER")] = b64encode(self._public).decode("ascii")
        context.request.headers[load("TIMESTAMP_HEADER")] = stamp
        context.request.headers[SESSION_HEADER] = self._session
        context.request.headers[load("FLEET_HTTP_SIGNATURE_HEADER")] = b64encode(signature).decode("ascii")
        return call_next(context)

    def correct(self, response: httpx.Response) -> bool:
        """Set the clock by the answer's date; returns whether it was wrong."""
        try:
            theirs = parsedate_to_datetime(response.headers["date"])
        except (KeyError, ValueError, TypeError):
            return False
        ahead = datetime.now(UTC) - self.ahead - theirs
        if abs(ahead.total_seconds()) < SKEW:
            return False
        self.ahead += ahead
        return True


class PatientClient(FleetHttpClient):  # type: ignore[misc,valid-type]
    """Flower's client of the Fleet interface, which tries a call again when the connection breaks.

    Every call may be repeated, because objects are named by their content.
    """

    tries = 1

    @classmethod
    def connect(cls, address: str, context: ssl.SSLContext, signed: SignedCalls) -> PatientClient:
        """Return a client of the coordinator at an address."""
        version = load("RuntimeVersionHttpInterceptor")(component_name="SuperNode")
        return cls(f"https://{address}", verify=context, timeout=30.0, interceptors=[version, signed])

    def _unary_unary(self, **call: Any) -> Any:
        wait = 0.1
        for left in range(self.tries - 1, -1, -1):
            try:
                return super()._unary_unary(**call)
            except httpx.TransportError as error:
                if left == 0 or isinstance(error, httpx.UnsupportedProtocol) or is_wrong_certificate(error):
                    raise
                time.sleep(wait)
                wait = min(2 * wait, 3.0)
        raise AssertionError("unreachable")


def is_wrong_certificate(error: BaseException | None) -> bool:
    """Return whether a connection failed because another certificate answered."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
