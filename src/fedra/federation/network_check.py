"""Whether a site reaches its coordinator, in plain words: address, certificate, clock, admission."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

SECONDS = 10.0
"""How long an answer is waited for."""
CLOCK = 3.0
"""Difference of two clocks in seconds from which it is mentioned as a problem."""


@dataclass(frozen=True)
class NetworkFinding:
    """What a site found at the coordinator's address."""

    reached: bool
    admitted: bool
    text: str


def check_network(address: str, context: ssl.SSLContext) -> NetworkFinding:
    """Connect to the coordinator once, with the site's own certificate.

    Args:
        address: The coordinator's host:port.
        context: The site's TLS settings.

    Returns:
        Whether it answers, whether the site is admitted, and a sentence.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    connection = http.client.HTTPSConnection(host, int(port), timeout=SECONDS, context=context)
    started = time.monotonic()
    try:
        connection.connect()
        took = time.monotonic() - started
        version = connection.sock.version() if isinstance(connection.sock, ssl.SSLSocket) else "no TLS"
        connection.request("GET", "/")
        date = connection.getresponse().headers.get("Date")
    except ssl.SSLCertVerificationError as error:
        return NetworkFinding(False, False, _describe_certificate(address, error))
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected):
        text = f"{address} answers, and closed the connection: this site is not admitted yet (or no longer)"
        return NetworkFinding(True, False, text)
    except socket.gaierror:
        return NetworkFinding(False, False, f"the name '{host}' cannot be found: check the address and your network")
    except TimeoutError:
        return NetworkFinding(
            False, False, f"{address} does not answer in {SECONDS:.0f} s: does a firewall stop connections to it?"
        )
    except (OSError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        return NetworkFinding(False, False, f"{address} cannot be reached ({reason}): does the coordinator run?")
    finally:
        connection.close()
    clock = _describe_clock(date)
    return NetworkFinding(True, True, f"reachable in {1000 * took:.0f} ms, {version}, admitted{clock}")


def _describe_certificate(address: str, error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message
    if "expired" in reason:
        return f"the coordinator's certificate at {address} has expired: it must run `fedra federate renew`"
    if "mismatch" in reason or "not valid for" in reason:
        return f"the coordinator's certificate does not name {address}: it must run `fedra federate renew --also`"
    return (
        f"another certificate answers at {address} ({reason}): a proxy or an antivirus reads along, or it is not this "
        "federation; let connections to it pass unread"
    )


def _describe_clock(date: str | None) -> str:
    if date is None:
        return ""
    off = (parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds()
    if abs(off) <= CLOCK:
        return "; clocks agree"
    return f"; your clock is {abs(off):.0f} s {'behind' if off > 0 else 'ahead'}, which fedra corrects"
