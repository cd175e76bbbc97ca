"""The link between a coordinator and its sites, and one within a process, which passes the same bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedra.federation.wire import Packet

Answer = Packet | str
"""What a question led to: an answer, or the reason why there is none."""
NOT_ADMITTED = "its site is not admitted anymore"
"""The reason if a site was removed."""
REFUSED_ANSWER = "refused: "
"""The beginning of the reason if an answer came and could not be used."""


class Link(Protocol):
    """Carries questions to sites and answers back. Only the coordinator's main thread calls it."""

    def present(self) -> list[str]:
        """Return the sites that gave a sign of life lately."""
        ...

    def last_seen(self, site: str) -> float | None:
        """Return how many seconds ago a site gave its last sign of life; None if it never did."""
        ...

    def send(self, site: str, question: Packet, seconds: float) -> int:
        """Send a question that is void after so many seconds; returns its ticket."""
        ...

    def collect(self, seconds: float) -> dict[int, Answer]:
        """Wait up to so many seconds for answers; returns those that came, by their tickets."""
        ...

    def drop(self, ticket: int) -> None:
        """Forget a question; a late answer to it is not delivered."""
        ...

    def limit(self, nbytes: int) -> None:
        """Refuse answers of more bytes."""
        ...

    def close(self) -> None:
        """Close the link."""
        ...


@dataclass(frozen=True)
class Waiting:
    """A question that a local site has not answered yet."""

    site: str
    question: Packet


class LocalLink:
    """Sites in this process: a question is answered when answers are collected, in the order that `order` gives."""

    def __init__(
        self,
        sites: Mapping[str, Callable[[Packet], Answer]],
        order: Callable[[list[int]], list[int]] = lambda tickets: tickets,
    ) -> None:
        self.sites = dict(sites)
        self.passed: list[tuple[str, Packet, Answer]] = []
        self._order = order
        self._numbers = itertools.count()
        self._waiting: dict[int, Waiting] = {}

    def present(self) -> list[str]:
        return list(self.sites)

    def last_seen(self, site: str) -> float | None:
        return 0.0 if site in self.sites else None

    def send(self, site: str, question: Packet, seconds: float) -> int:
        ticket = next(self._numbers)
        self._waiting[ticket] = Waiting(site, question)
        return ticket

    def collect(self, seconds: float) -> dict[int, Answer]:
        found: dict[int, Answer] = {}
        for ticket in self._order(list(self._waiting)):
            asked = self._waiting.pop(ticket)
            known = self.sites.get(asked.site)
            found[ticket] = known(asked.question) if known else "away"
            self.passed.append((asked.site, asked.question, found[ticket]))
        return found

    def drop(self, ticket: int) -> None:
        self._waiting.pop(ticket, None)

    def limit(self, nbytes: int) -> None:
        """Limit nothing: answers are in this process already."""

    def close(self) -> None:
        self._waiting.clear()
