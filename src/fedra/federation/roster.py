"""The roster: which sites take part, the numbers of their clients, their sizes and the classes that they hold.

Numbers are given once and never again: a site that leaves keeps its numbers, and a new one gets the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from fedra.core.ownership import Owners
from fedra.errors import RunError
from fedra.federation.wire import SiteWords
from fedra.writing import write_atomically

SIZE_UNKNOWN = 1
"""The size of a client whose site does not tell it; all clients then have equal weights."""


class RosterClient(BaseModel):
    """A client: its number of examples and of held-out examples, and the classes that it holds, if clients own any."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    site: str
    examples: NonNegativeInt
    tests: NonNegativeInt = 0
    holds: tuple[NonNegativeInt, ...] | None = None


class FederationRoster(BaseModel):
    """All clients of a federation by their numbers; it implements the core's `Roster`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    clients: tuple[RosterClient, ...] = ()
    classes: NonNegativeInt = 0

    def __len__(self) -> int:
        return len(self.clients)

    def size(self, client: int) -> int:
        """Return the client's number of examples."""
        return self.clients[client].examples

    def sites(self) -> list[str]:
        """Return the sites in the order of their numbers."""
        return list(dict.fromkeys(client.site for client in self.clients))

    def numbers(self, site: str) -> list[int]:
        """Return the numbers of a site's clients."""
        return [number for number, client in enumerate(self.clients) if client.site == site]

    def site_of(self, client: int) -> str:
        """Return the site of a client."""
        return self.clients[client].site

    def owners(self) -> Owners | None:
        """Return who holds which classes; None if clients own none."""
        if any(client.holds is None for client in self.clients):
            return None
        return Owners([torch.tensor(client.holds) for client in self.clients], self.classes)

    def with_site(self, site: str, words: SiteWords, *, owned: bool, equal: bool) -> FederationRoster:
        """Return the roster with a site; one that is known must be as it was.

        Args:
            site: Name of the site.
            words: How it describes itself.
            owned: Whether clients own classes; each then gets a block of new ones.
            equal: Whether all clients have equal weights.
        """
        sizes = [SIZE_UNKNOWN if equal or one.examples is None else one.examples for one in words.clients]
        if known := self.numbers(site):
            self._check_unchanged(site, known, sizes, [one.classes for one in words.clients], owned)
            return self
        first, added = self.classes, []
        for one, size in zip(words.clients, sizes, strict=True):
            holds = tuple(range(first, first + one.classes)) if owned else None
            added.append(RosterClient(site=site, examples=size, tests=one.tests, holds=holds))
            first += one.classes if owned else 0
        return FederationRoster(clients=(*self.clients, *added), classes=first)

    def _check_unchanged(
        self, site: str, known: Sequence[int], sizes: Sequence[int], classes: Sequence[int], owned: bool
    ) -> None:
        before = [(self.size(n), len(self.clients[n].holds or ())) for n in known]
        now = [(size, count if owned else 0) for size, count in zip(sizes, classes, strict=True)]
        if before != now:
            raise RunError(
                f"the clients of {site} must be as they were when it joined ({len(before)} with "
                f"{sum(size for size, _ in before):,} examples), got {len(now)} with {sum(s for s, _ in now):,}: its "
                "data changed; restore them"
            )


def read_roster(path: Path) -> FederationRoster:
    """Read the roster of a federation; an empty one if there is none."""
    if not path.exists():
        return FederationRoster()
    try:
        return FederationRoster.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        reason = ": ".join(filter(None, (".".join(map(str, first["loc"]))[:100], first["msg"])))
        raise RunError(
            f"the roster '{path}' is damaged ({reason}): restore it from a backup, because with other numbers clients "
            "would get other clients' state"
        ) from None


def write_roster(path: Path, roster: FederationRoster) -> None:
    """Write the roster of a federation."""
    write_atomically(path, roster.model_dump_json(indent=1).encode())
