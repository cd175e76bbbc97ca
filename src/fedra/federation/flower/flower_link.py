"""The coordinator's link to sites over the internet."""

from __future__ import annotations

import itertools
import queue
import ssl
import threading
import time
from dataclasses import dataclass

from cryptography.x509 import Certificate

from fedra.federation.flower.fleet_server import Arrivals, FleetServer
from fedra.federation.flower.link_state import LinkState
from fedra.federation.flower.private_names import load
from fedra.federation.link import Answer
from fedra.federation.wire import Packet, WireError

BEAT = 10.0


@dataclass
class _Open:
    """A question without an answer."""

    ticket: int
    site: str
    question: Packet
    until: float
    began: int


class FlowerLink:
    """Admitted sites, their questions and their answers; a site that starts anew is asked again."""

    def __init__(self, patience: float = 60.0) -> None:
        self._links = LinkState()
        self._patience = patience
        self._server = FleetServer(self._links, Arrivals(self._see, self._begin, self._complete), self._is_open)
        self._nodes: dict[str, int] = {}
        self._seen: dict[int, float] = {}
        self._sessions: dict[int, int] = {}
        self._open: dict[str, _Open] = {}
        self._answers: queue.Queue[tuple[str, Answer]] = queue.Queue()
        self._tickets = itertools.count()
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def start(self, host: str, port: int, context: ssl.SSLContext) -> tuple[str, int]:
        """Listen; returns the address, with the port that was found for port 0."""
        self._context = context
        self._server.start(host, port, context)
        threading.Thread(target=self._beat, name="fedra-beat", daemon=True).start()
        return self._server.address

    @property
    def address(self) -> str:
        """Where the link listens."""
        return "{}:{}".format(*self._server.address)

    def limit(self, nbytes: int) -> None:
        """Refuse answers of more bytes, by the number of objects that they are cut into."""
        self._server.most_objects = 64 + 4 * (nbytes // (5 * 10**6) + 1)

    def admit(self, site: str, certificate: Certificate) -> None:
        """Let a site in, now."""
        self._nodes[site] = self._links.admit(load("public_key_to_bytes")(certificate.public_key()))

    def remove(self, site: str) -> None:
        """Refuse a site from now on."""
        node = self._nodes.pop(site, None)
        if node is not None:
            self._links.remove(node)
            self._seen.pop(node, None)

    def sites(self) -> list[str]:
        """Return the admitted sites."""
        return list(self._nodes)

    def present(self) -> list[str]:
        return [site for site in self._nodes if (seen := self.last_seen(site)) is not None and seen < self._patience]

    def last_seen(self, site: str) -> float | None:
        seen = self._seen.get(self._nodes.get(site, -1))
        return None if seen is None else time.monotonic() - seen

    def send(self, site: str, question: Packet, seconds: float) -> int:
        ticket = next(self._tickets)
        self._push(_Open(ticket, site, question, time.monotonic() + seconds, 0))
        return ticket

    def _push(self, one: _Open) -> None:
        node = self._nodes.get(one.site)
        if node is None:
            self._answers.put((f"removed-{one.ticket}", "its site is not admitted anymore"))
            with self._lock:
                self._open[f"removed-{one.ticket}"] = one
            return
        one.began = self._sessions.get(node, 0)
        name = self._links.push(node, one.question, max(one.until - time.monotonic(), 1.0))
        with self._lock:
            self._open[name] = one
        self._server.wake(node)

    def collect(self, seconds: float) -> dict[int, Answer]:
        self._ask_again()
        found: dict[int, Answer] = {}
        until = time.monotonic() + seconds
        while True:
            try:
                name, answer = self._answers.get(timeout=max(until - time.monotonic(), 0.0) if not found else 0.0)
            except queue.Empty:
                return found
            with self._lock:
                one = self._open.pop(name, None)
            if one is not None:
                found[one.ticket] = answer

    def _ask_again(self) -> None:
        """Ask sites anew whose process began anew since they were asked, and forget questions of removed sites."""
        with self._lock:
            waiting = list(self._open.items())
        for name, one in waiting:
            node = self._nodes.get(one.site)
            if node is None and not name.startswith("removed-"):
                self._answers.put((name, "its site is not admitted anymore"))
            elif node is not None and self._sessions.get(node, 0) != one.began:
                with self._lock:
                    known = self._open.pop(name, None)
                if known is not None:
                    self._links.drop(name)
                    self._push(one)

    def drop(self, ticket: int) -> None:
        with self._lock:
            names = [name for name, one in self._open.items() if one.ticket == ticket]
            for name in names:
                del self._open[name]
        for name in names:
            self._links.drop(name)

    def close(self) -> None:
        self._closed.set()
        self._server.close()

    def _beat(self) -> None:
        while not self._closed.wait(BEAT):
            self._links.beat()

    def _see(self, node: int) -> None:
        self._seen[node] = time.monotonic()

    def _begin(self, node: int) -> None:
        self._see(node)
        self._sessions[node] = self._sessions.get(node, 0) + 1

    def _is_open(self, question: str) -> bool:
        return question in self._open

    def _complete(self, question: str) -> None:
        """Take an answer the moment it is complete: Flower drops it if its node goes away first."""
        try:
            answer = self._links.pull(question)
            self._answers.put((question, answer if answer is not None else "its answer was lost"))
        except WireError as error:
            self._answers.put((question, f"refused: {error}"))
