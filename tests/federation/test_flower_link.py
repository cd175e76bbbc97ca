"""The link over TLS: who is let in, what passes, what the port answers, and what a bad network does."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from linking import Loopback, echo, loopback, proxy

from fedra.federation import keys
from fedra.federation.flower import private_names
from fedra.federation.flower.gate import CALLS, MAX_REQUEST
from fedra.federation.flower.session import NotAdmitted, OtherCoordinator, Replaced
from fedra.federation.wire import Packet

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SMALL = Packet("train", '{"round": 1}', {"shared": b"12345"})


def call(found: Loopback, name: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """A raw request with a site's certificate."""
    context = keys.site_context(found.folder / name, found.authority)
    connection = http.client.HTTPSConnection("127.0.0.1", found.port, context=context, timeout=20)
    try:
        connection.request("POST", path, body, {"content-type": "application/protobuf", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_every_private_name_of_flower_is_there() -> None:
    """The canary: if a newer flwr moved a name, this says which."""
    assert private_names.find_missing() == []


def test_questions_and_answers_of_all_sizes_pass(tmp_path: Path) -> None:
    with loopback(tmp_path, "a", "b") as found:
        found.join("a")
        found.join("b")
        found.wait("a", "b")
        for size in (0, 1, 300_000, 12_000_000):
            blob = os.urandom(size)
            packet = Packet("train", f'{{"size": {size}}}', {"shared": blob, "own": b"own"} if size else {})
            assert found.ask("a", packet) == packet
            assert found.ask("b", packet) == packet
        assert len(found.link._links.state.object_store) == 0  # what arrived is forgotten


def test_large_tensors_on_their_way_are_on_disk_until_they_are_collected(tmp_path: Path) -> None:
    """So that memory does not grow with the number of answers; nothing is left behind, and others cannot read it."""
    names = [f"site-{number}" for number in range(4)]
    size = 2_000_000
    with loopback(tmp_path, *names) as found:
        for name in names:
            found.join(name, lambda packet: Packet("train", "{}", {"own": os.urandom(size)}))
        found.wait(*names)
        tickets = {found.link.send(name, SMALL, 60) for name in names}
        until = time.monotonic() + 60
        while found.link._arrived.qsize() < len(names):
            assert time.monotonic() < until
            time.sleep(0.02)
        files = list((tmp_path / "spool").iterdir())
        assert sum(path.stat().st_size for path in files) >= len(names) * size
        assert all(path.stat().st_mode & 0o077 == 0 for path in [*files, tmp_path / "spool"])
        store = found.link._links.state.object_store
        assert sum(len(entry.content) for entry in store.store.values()) < size / 10
        for left in range(len(names) - 1, -1, -1):
            answers = found.link.collect(5)
            assert len(answers) == 1  # one large answer at a time
            tickets -= answers.keys()
            assert len(tickets) == left
        assert list((tmp_path / "spool").iterdir()) == []
        dropped = found.link.send(names[0], SMALL, 60)
        while not found.link._arrived.qsize():
            assert time.monotonic() < until
            time.sleep(0.02)
        found.link.drop(dropped)
        assert found.link.collect(0.1) == {}
        assert list((tmp_path / "spool").iterdir()) == []


def test_answers_come_in_any_order(tmp_path: Path) -> None:
    slow = threading.Event()

    def wait(packet: Packet) -> Packet:
        slow.wait(20)
        return packet

    with loopback(tmp_path, "a", "b") as found:
        found.join("a", wait)
        found.join("b")
        found.wait("a", "b")
        tickets = [found.link.send(name, SMALL, 60) for name in "ab"]
        assert set(found.link.collect(20)) == {tickets[1]}
        slow.set()
        assert set(found.link.collect(20)) == {tickets[0]}


def test_an_unknown_site_is_not_let_in(tmp_path: Path) -> None:
    with loopback(tmp_path, "a") as found:
        keys.create_site(tmp_path / "stranger", "stranger")
        found.join("stranger")
        until = time.monotonic() + 40
        while not found.told["stranger"] and time.monotonic() < until:
            time.sleep(0.05)
        assert found.told["stranger"][0].startswith(
            "the coordinator closed the connection: stranger is not admitted (or no longer)"
        )
        assert found.link.present() == []


def test_a_site_admitted_while_the_link_runs_is_let_in_and_a_removed_one_is_not(tmp_path: Path) -> None:
    with loopback(tmp_path, "a") as found:
        certificate = keys.read_certificate(keys.create_site(tmp_path / "late", "late").certificate)
        found.link._context.load_verify_locations(cadata=keys.to_pem(certificate))
        found.link.admit("late", certificate)
        thread = found.join("late")
        found.wait("late")
        assert found.ask("late", SMALL) == SMALL
        found.link.remove("late")
        assert found.ask("late", SMALL, 20) == "its site is not admitted anymore"
        thread.join(60)
        assert isinstance(found.ended["late"], NotAdmitted)
        assert "late: it is not admitted, or no longer" in str(found.ended["late"])


def test_another_authority_is_not_believed(tmp_path: Path) -> None:
    with loopback(tmp_path, "a") as found:
        other = keys.read_certificate(keys.create_authority(tmp_path / "other", "other").certificate)
        found.join("a", authority=keys.to_pem(other)).join(40)
        assert isinstance(found.ended["a"], OtherCoordinator)
        assert "must be that of this federation, got another" in str(found.ended["a"])


def test_the_port_answers_eight_calls_and_nothing_else(tmp_path: Path) -> None:
    with loopback(tmp_path, "a") as found:
        for path in ("/", "/docs", "/v1/fleet/get-fab", "/v1/fleet/register-node", "/v1/control/start-run"):
            assert call(found, "a", path)[0] == 404
        for path in ("/v1/runtime/acquire-task", "/v1/runtime/push-messages", "/openapi.json"):
            assert call(found, "a", path)[0] == 404
        for name in CALLS:
            assert call(found, "a", f"/v1/fleet/{name}")[0] == 401


def test_a_large_request_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with loopback(tmp_path, "a") as found:
        status, body = call(found, "a", "/v1/fleet/push-object", **{"content-length": str(50 * 2**20)})
        assert status == 413
        assert f"at most {MAX_REQUEST:,} bytes, got 52,428,800" in body.decode()
        assert call(found, "a", "/v1/fleet/push-object", **{"transfer-encoding": "chunked"})[0] in (400, 411)


def test_plain_http_is_not_answered(tmp_path: Path) -> None:
    with loopback(tmp_path, "a") as found:
        with socket.create_connection(("127.0.0.1", found.port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            plain.settimeout(10)
            assert b"HTTP/1.1 200" not in plain.recv(4096)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=found.authority)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, OSError)):
            context.wrap_socket(socket.create_connection(("127.0.0.1", found.port)), server_hostname="127.0.0.1")


def test_an_answer_with_too_many_objects_is_refused_and_both_sides_are_told(tmp_path: Path) -> None:
    with loopback(tmp_path, "a") as found:
        found.link.limit(1_000_000)
        found.join("a", lambda packet: Packet("train", "{}", {f"{n}": os.urandom(300_000) for n in range(80)}))
        found.wait("a")
        assert found.ask("a", SMALL) == "refused: an answer must have at most 17 objects, got 164"
        until = time.monotonic() + 40
        while "an answer was too large: refused" not in found.told["a"] and time.monotonic() < until:
            time.sleep(0.02)
        assert "an answer was too large: refused" in found.told["a"]


def test_a_tampered_object_is_refused_and_the_answer_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object whose content is not that of its name is not stored; the next session sends the true one."""
    from fedra.federation.flower import session

    real, tampered = session.PatientClient.PushObject, []

    def push(client: Any, request: Any) -> Any:
        if not tampered:
            tampered.append(request.object_id)
            request.object_content = request.object_content[:-1] + b"?"
        return real(client, request)

    monkeypatch.setattr(session.PatientClient, "PushObject", push)
    with loopback(tmp_path, "a") as found:
        found.join("a")
        found.wait("a")
        assert found.ask("a", SMALL) == SMALL
        assert len(tampered) == 1


def test_a_late_answer_is_dropped_and_told(tmp_path: Path) -> None:
    with loopback(tmp_path, "a") as found:
        release = threading.Event()

        def wait(packet: Packet) -> Packet:
            release.wait(30)
            return packet

        found.join("a", wait)
        found.wait("a")
        ticket = found.link.send("a", SMALL, 60)
        found.link.collect(0.5)
        found.link.drop(ticket)
        release.set()
        until = time.monotonic() + 30
        while not any("too late" in line for line in found.told["a"]) and time.monotonic() < until:
            assert found.link.collect(0.2) == {}
        assert "an answer came too late and was dropped" in found.told["a"]
        assert found.ask("a", SMALL) == SMALL


def test_a_site_that_starts_anew_is_asked_again(tmp_path: Path) -> None:
    with loopback(tmp_path, "a") as found:
        asked = threading.Event()

        def die(packet: Packet) -> Packet:
            asked.set()
            raise SystemExit

        found.join("a", die)
        found.wait("a")
        ticket = found.link.send("a", SMALL, 60)
        assert asked.wait(30)
        found.join("a", echo)
        answers: dict[int, Any] = {}
        until = time.monotonic() + 40
        while not answers and time.monotonic() < until:
            answers = found.link.collect(0.5)
        assert answers == {ticket: SMALL}


def test_of_two_processes_with_one_key_the_later_one_stays(tmp_path: Path) -> None:
    """The earlier one is told at once, although it waits for a question, and does not come back."""
    with loopback(tmp_path, "a") as found:
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        earlier = found.join("a")
        found.wait("a")
        found.ask("a", SMALL)
        later = found.join("copy", lambda packet: Packet("train", '{"by": "copy"}'))
        earlier.join(timeout=15)
        assert isinstance(found.ended["a"], Replaced)
        assert "taken its place" in str(found.ended["a"])
        assert "tell the coordinator" in str(found.ended["a"])
        answer = found.ask("a", SMALL)
        assert isinstance(answer, Packet)
        assert answer.words == '{"by": "copy"}'
        assert later.is_alive()
        assert [line.partition(":")[0] for line in found.notices] == ["a"]


def test_a_replaced_process_that_was_training_is_told_when_it_answers(tmp_path: Path) -> None:
    training, replaced = threading.Event(), threading.Event()

    def slow(packet: Packet) -> Packet:
        training.set()
        replaced.wait(20)
        return packet

    with loopback(tmp_path, "a") as found:
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        earlier = found.join("a", slow)
        found.wait("a")
        ticket = found.link.send("a", SMALL, 60)
        assert training.wait(20)
        found.join("copy", lambda packet: Packet("train", '{"by": "copy"}'))
        answer = next(one[ticket] for one in iter(lambda: found.link.collect(0.5), None) if ticket in one)
        assert isinstance(answer, Packet)
        assert answer.words == '{"by": "copy"}'
        replaced.set()
        earlier.join(timeout=20)
        assert isinstance(found.ended["a"], Replaced)


def test_a_wrong_clock_is_corrected_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import UTC, datetime, timedelta

    from fedra.federation.flower import fleet_client

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz or UTC) + timedelta(hours=2)

    with loopback(tmp_path, "a") as found:
        monkeypatch.setattr(fleet_client, "datetime", Ahead)
        found.join("a")
        found.wait("a")
        assert found.ask("a", SMALL) == SMALL
        assert found.told["a"][0].startswith("the clock of this machine is wrong")


def test_a_site_behind_a_proxy_that_passes_tls_through_takes_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual way out of an organization: HTTPS_PROXY, and the method CONNECT."""
    for name in ("NO_PROXY", "no_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with loopback(tmp_path, "a") as found, proxy(found.port, tunnel=True) as (port, asked):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        found.join("a")
        found.wait("a")
        assert found.ask("a", SMALL) == SMALL
        assert asked  # each tunnel is noted


CALLED = """
import sys, warnings
warnings.simplefilter("ignore")
called = set()

def hook(event, words):
    if event in ("socket.connect", "socket.sendto"):
        called.add(str(words[1]))
    elif event == "socket.getaddrinfo":
        called.add(str(words[0]))

sys.addaudithook(hook)
from pathlib import Path
from linking import loopback
from fedra.federation.wire import Packet
with loopback(Path(sys.argv[1]), "a") as found:
    found.join("a")
    found.wait("a")
    assert found.ask("a", Packet("train", "{}", {"shared": b"x" * 10**6}))
print("\\n".join(sorted(called)))
"""


@pytest.mark.slow
def test_nobody_else_is_called(tmp_path: Path) -> None:
    """Flower's telemetry is not switched off here, and still calls no one: it is never entered."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "FLWR_TELEMETRY_ENABLED": "1"}
    words = [sys.executable, "-c", CALLED, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()
    assert all("127.0.0.1" in line for line in done.stdout.splitlines()), done.stdout


@pytest.mark.slow
def test_a_slow_network_that_cuts_connections_loses_nothing(tmp_path: Path) -> None:
    with (
        loopback(tmp_path, "a", "b") as found,
        proxy(found.port, delay=0.01, rate=20e6, cut=(200_000, 3_000_000)) as (
            port,
            cuts,
        ),
    ):
        found.join("a", port=port)
        found.join("b", port=port)
        found.wait("a", "b")
        for _ in range(3):
            packet = Packet("train", "{}", {"shared": os.urandom(1_500_000)})
            assert found.ask("a", packet, 120) == packet
            assert found.ask("b", packet, 120) == packet
        assert cuts
