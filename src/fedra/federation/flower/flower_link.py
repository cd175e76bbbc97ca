"""The coordinator's link to sites over the internet."""

from __future__ import annotations

import itertools
import queue
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.x509 import Certificate

from fedra.federation.flower.fleet_server import FEW_OBJECTS, Arrivals, FleetServer
from fedra.federation.flower.link_state import DEFAULT_LIMIT, LARGE, LinkState
from fedra.federation.flower.private_names import load
from fedra.federation.link import NOT_ADMITTED, REFUSED_ANSWER, Answer
from fedra.federation.wire import MAX_WORDS, Packet, WireError
from fedra.runners.pages import return_large_blocks

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
    """Admitted sites, their questions and their answers; a site that starts anew is asked again.

    Args:
        folder: Where large tensors on their way are kept, instead of in memory; it is emptied.
        patience: Seconds without a sign of life until a site counts as away.
        tell: Called with lines for the coordinator's terminal.
    """

    def __init__(self, folder: Path, patience: float = 60.0, tell: Callable[[str], None] = lambda line: None) -> None:
        self._links = LinkState(folder)
        self._patience, self._tell = patience, tell
        arrivals = Arrivals(self._see, self._begin, self._replace, self._complete, self._refuse)
        self._server = FleetServer(self._links, arrivals, self._is_open)
        self.limit(DEFAULT_LIMIT)
        self._nodes: dict[str, int] = {}
        self._seen: dict[int, float] = {}
        self._sessions: dict[int, int] = {}
        self._open: dict[str, _Open] = {}
        self._arrived: queue.Queue[tuple[str, str | None, str]] = queue.Queue()  # question, answer, else the reason
        self._tickets = itertools.count()
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def start(self, host: str, port: int, context: ssl.SSLContext) -> tuple[str, int]:
        """Listen; returns the address, with the port that was found for port 0."""
        self._context = context
        return_large_blocks()
        self._server.start(host, port, context)
        threading.Thread(target=self._beat, name="fedra-beat", daemon=True).start()
        return self._server.address

    @property
    def address(self) -> str:
        """Where the link listens."""
        return "{}:{}".format(*self._server.address)

    def limit(self, nbytes: int) -> None:
        """Refuse answers with more bytes of tensors: by the number of objects at the door, by their bytes afterward."""
        self._server.most_objects = FEW_OBJECTS + nbytes // (5 * 10**6) + 1
        self._links.most_bytes = nbytes + MAX_WORDS

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
            with self._lock:
                self._open[f"removed-{one.ticket}"] = one
            self._arrived.put((f"removed-{one.ticket}", None, NOT_ADMITTED))
            return
        one.began = self._sessions.get(node, 0)
        name = self._links.push(node, one.question, max(one.until - time.monotonic(), 1.0))
        with self._lock:
            self._open[name] = one
        self._server.wake(node)

    def collect(self, seconds: float) -> dict[int, Answer]:
        """Wait for answers; returns after a large one, so that no more than one is in memory."""
        self._ask_again()
        found: dict[int, Answer] = {}
        until = time.monotonic() + seconds
        while not any(isinstance(answer, Packet) and answer.nbytes > LARGE for answer in found.values()):
            try:
                waiting = max(until - time.monotonic(), 0.0) if not found else 0.0
                question, name, reason = self._arrived.get(timeout=waiting)
            except queue.Empty:
                break
            with self._lock:
                one = self._open.pop(question, None)
            if one is not None:
                found[one.ticket] = reason if name is None else self._read(name)
            elif name is not None:
                self._links.forget(name)
        return found

    def _read(self, name: str) -> Answer:
        try:
            return self._links.read(name)
        except WireError as error:
            return f"{REFUSED_ANSWER}{error}"

    def _ask_again(self) -> None:
        """Ask sites anew whose process began anew since they were asked, and forget questions of removed sites."""
        with self._lock:
            waiting = list(self._open.items())
        for name, one in waiting:
            node = self._nodes.get(one.site)
            if node is None and not name.startswith("removed-"):
                self._arrived.put((name, None, NOT_ADMITTED))
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
        self._links.close()

    def _beat(self) -> None:
        while not self._closed.wait(BEAT):
            self._links.beat()

    def _see(self, node: int) -> None:
        self._seen[node] = time.monotonic()

    def _begin(self, node: int) -> None:
        self._see(node)
        self._sessions[node] = self._sessions.get(node, 0) + 1

    def _replace(self, node: int) -> None:
        """Tell that two processes use one key: its people started a second one, or the key was copied."""
        site = next((site for site, known in self._nodes.items() if known == node), "a site")
        self._tell(
            f"{site}: a second process with its key took the place of the first; if its people did not start it, the "
            "key was copied: remove the site"
        )

    def _is_open(self, question: str) -> bool:
        return question in self._open

    def _refuse(self, question: str, reason: str) -> None:
        self._arrived.put((question, None, f"{REFUSED_ANSWER}{reason}"))

    def _complete(self, question: str) -> None:
        """Take an answer the moment it is complete: Flower drops it if its node goes away first."""
        try:
            self._arrived.put((question, self._links.take(question), "its answer was lost"))
        except WireError as error:
            self._arrived.put((question, None, str(error)))
