"""What a site says of the way to its coordinator: admitted, not admitted, another certificate, another clock."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from fedra.federation import keys
from fedra.federation.network_check import check_network


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("network")
    for name in ("chest", "other"):
        keys.create_authority(base / name, name)
        keys.create_server(base / name, ["fed.example.org"])
    for name in ("mary", "john"):
        keys.create_site(base / name, name)
    return {name: base / name for name in ("chest", "other", "mary", "john")}


@contextmanager
def coordinator(context: ssl.SSLContext, off: timedelta = timedelta(0)) -> Iterator[str]:
    """A server that answers one request with 404, as a coordinator does; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def answer() -> None:
            try:
                accepted, _ = listening.accept()
                with accepted, context.wrap_socket(accepted, server_side=True) as secure:
                    secure.recv(4096)
                    date = format_datetime(datetime.now(UTC) + off, usegmt=True)
                    secure.sendall(f"HTTP/1.1 404 Not Found\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode())
            except OSError:
                return

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def server_of(places: dict[str, Path], name: str = "chest") -> ssl.SSLContext:
    return keys.server_context(places[name], [keys.site_files(places["mary"]).certificate.read_text()])


def site_of(places: dict[str, Path], name: str = "mary") -> ssl.SSLContext:
    return keys.site_context(places[name], keys.authority_files(places["chest"]).certificate.read_text())


def test_an_admitted_site_learns_it(places: dict[str, Path]) -> None:
    with coordinator(server_of(places)) as address:
        found = check_network(address, site_of(places))
    assert found.reached
    assert found.admitted
    assert "TLSv1.3, admitted; clocks agree" in found.text


def test_a_wrong_clock_is_named(places: dict[str, Path]) -> None:
    with coordinator(server_of(places), timedelta(hours=2)) as address:
        assert "s behind, which fedra corrects" in check_network(address, site_of(places)).text


def test_a_site_that_is_not_admitted_learns_it(places: dict[str, Path]) -> None:
    with coordinator(server_of(places)) as address:
        found = check_network(address, site_of(places, "john"))
    assert found.reached
    assert not found.admitted
    assert "not admitted yet" in found.text


def test_another_certificate_is_called_what_it_may_be(places: dict[str, Path]) -> None:
    with coordinator(server_of(places, "other")) as address:
        found = check_network(address, site_of(places))
    assert not found.reached
    assert "a proxy or an antivirus reads along" in found.text


def test_a_name_that_cannot_be_found_is_named(places: dict[str, Path]) -> None:
    assert "cannot be found" in check_network("no-such-host.invalid:8443", site_of(places)).text
