"""A link over loopback TLS with sites in threads, and a proxy between them that delays, limits and cuts."""

from __future__ import annotations

import random
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedra.federation import keys
from fedra.federation.link import Answer
from fedra.federation.wire import Packet

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # flwr imports typer, which asks click for old names
    from fedra.federation.flower.flower_link import FlowerLink
    from fedra.federation.flower.session import SiteSession


def echo(packet: Packet) -> Packet:
    return Packet(packet.kind, packet.words, dict(packet.blobs))


@dataclass
class Loopback:
    """A coordinator's link and the folders of its sites."""

    folder: Path
    link: FlowerLink
    port: int
    notices: list[str]
    told: dict[str, list[str]] = field(default_factory=dict)
    ended: dict[str, BaseException] = field(default_factory=dict)
    sessions: dict[str, SiteSession] = field(default_factory=dict)

    @property
    def authority(self) -> str:
        return keys.to_pem(keys.read_certificate(keys.authority_files(self.folder / "coordinator").certificate))

    def join(
        self,
        name: str,
        answer: Callable[[Packet], Packet] = echo,
        *,
        port: int | None = None,
        authority: str | None = None,
    ) -> threading.Thread:
        """A site's session in a thread."""
        lines = self.told.setdefault(name, [])
        context = keys.site_context(self.folder / name, authority or self.authority)
        address = f"127.0.0.1:{port or self.port}"
        session = SiteSession(self.folder / name, address, context, answer, lines.append, name)
        self.sessions[name] = session

        def run() -> None:
            try:
                session.run()
            except BaseException as error:
                self.ended[name] = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def wait(self, *names: str, seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while not set(names) <= set(self.link.present()):
            assert time.monotonic() < until, (names, self.told, self.ended)
            time.sleep(0.02)

    def ask(self, name: str, packet: Packet, seconds: float = 60.0) -> Answer:
        ticket = self.link.send(name, packet, seconds)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = self.link.collect(0.5)
            if ticket in found:
                return found[ticket]
        raise AssertionError((name, self.told, self.ended))


@contextmanager
def loopback(folder: Path, *names: str, patience: float = 60.0) -> Iterator[Loopback]:
    """A link that admits these sites."""
    keys.create_authority(folder / "coordinator", "test")
    keys.create_server(folder / "coordinator", ["127.0.0.1"])
    certificates = {name: keys.read_certificate(keys.create_site(folder / name, name).certificate) for name in names}
    context = keys.server_context(folder / "coordinator", map(keys.to_pem, certificates.values()))
    notices: list[str] = []
    link = FlowerLink(folder / "spool", patience, notices.append)
    for name, certificate in certificates.items():
        link.admit(name, certificate)
    _, port = link.start("127.0.0.1", 0, context)
    found = Loopback(folder, link, port, notices)
    try:
        yield found
    finally:
        for session in found.sessions.values():
            session.stopped.set()
        link.close()


@contextmanager
def proxy(
    port: int,
    *,
    delay: float = 0.0,
    rate: float | None = None,
    cut: tuple[int, int] | None = None,
    tunnel: bool = False,
    seed: int = 0,
) -> Iterator[tuple[int, list[int]]]:
    """A proxy on loopback: seconds of delay each way, bytes per second, and the range of bytes after which it cuts.

    Yields its port, and a list with the bytes that passed before each cut. With `tunnel` it is an HTTP proxy that is
    asked to CONNECT, and the list has the bytes of each such request.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    cuts: list[int] = []
    draw = random.Random(seed)
    done = threading.Event()

    lock, free = threading.Lock(), {"up": 0.0, "down": 0.0}
    late = 0.02  # seconds by which a thread may wake up late without the line losing them

    def wait_for_turn(way: str, size: int) -> None:
        """All connections share the line in each direction."""
        assert rate is not None
        with lock:
            free[way] = max(free[way], time.monotonic() - late) + size / rate
            due = free[way]
        time.sleep(max(due - time.monotonic(), 0.0))

    def pump(source: socket.socket, sink: socket.socket, left: list[float], way: str) -> None:
        try:
            while data := source.recv(65536):
                if delay:
                    time.sleep(delay)
                if rate:
                    wait_for_turn(way, len(data))
                left[0] -= len(data)
                if left[0] < 0:
                    cuts.append(len(data))
                    break
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def accept() -> None:
        while not done.is_set():
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", port))
            except OSError:  # the coordinator is away
                near.close()
                continue
            if tunnel:
                request = near.recv(65536)
                assert request.startswith(b"CONNECT 127.0.0.1:%d " % port), request
                cuts.append(len(request))
                near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            left = [float(draw.randint(*cut)) if cut else float("inf")]
            for source, sink, way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=pump, args=(source, sink, left, way), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1], cuts
    finally:
        done.set()
        listener.close()
