"""The roster: which sites take part, the numbers of their clients, their sizes and the classes that they hold.

Numbers are given once and never again: a site that leaves keeps its numbers, and a new one gets the next.
"""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from fedra.core.ownership import Owners
from fedra.errors import RunError
from fedra.federation.wire import ClientWords, SiteWords, Token
from fedra.file_reading import LARGE, read_file
from fedra.writing import write_atomically

SIZE_UNKNOWN = 1
"""The size of a client whose site does not tell it; all clients then have equal weights."""


class RosterClient(BaseModel):
    """A client: its numbers of examples and of held-out examples, and the classes that it holds, if clients own any.

    `people` are the tokens of its classes, where people are matched across sites. `since` is the round before which
    its classes last grew: state of earlier rounds does not fit them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    site: str
    examples: NonNegativeInt
    tests: NonNegativeInt = 0
    holds: tuple[NonNegativeInt, ...] | None = None
    people: tuple[Token, ...] | None = None
    since: NonNegativeInt = 0


class FederationRoster(BaseModel):
    """All clients of a federation by their numbers; it implements the core's `Roster`.

    `secret` marks the secret of the sites, where people are matched across sites: all must have the same.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    clients: tuple[RosterClient, ...] = ()
    classes: NonNegativeInt = 0
    secret: Token | None = None

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

    def with_site(
        self, site: str, words: SiteWords, *, owned: bool, equal: bool, matched: bool = False, round: int = 0
    ) -> FederationRoster:
        """Return the roster with a site; one that is known keeps its numbers and classes.

        Args:
            site: Name of the site.
            words: How it describes itself.
            owned: Whether clients own classes; each then gets new ones, except those that others have already.
            equal: Whether all clients have equal weights.
            matched: Whether people are matched across sites by their tokens.
            round: The number of finished rounds, which a client whose people grew remembers.
        """
        known = self.numbers(site)
        if known and len(known) != len(words.clients):
            raise RunError(
                f"{site} must have the {len(known)} clients that it joined with, got {len(words.clients)}: restore the "
                "others, or join with a new site"
            )
        secret = self.secret or (words.secret if matched else None)
        if matched and words.secret != secret:
            raise RunError(
                f"{site} must have the same secret as the other sites, got another or none: compare the fingerprints "
                "that `fedra site secret` shows"
            )
        clients, numbering = list(self.clients), _Numbering(self)
        for index, one in enumerate(words.clients):
            before = clients[known[index]] if known else None
            tokens = _tokens(site, one, matched)
            holds = numbering.holds(site, before, one.classes, tokens) if owned else None
            grown = before is not None and before.holds != holds
            client = RosterClient(
                site=site,
                examples=SIZE_UNKNOWN if equal or one.examples is None else one.examples,
                tests=one.tests,
                holds=holds,
                people=tokens,
                since=round if grown else (0 if before is None else before.since),
            )
            if before is None:
                clients.append(client)
            else:
                clients[known[index]] = client
        count = numbering.count if owned else self.classes
        return FederationRoster(clients=tuple(clients), classes=count, secret=secret)


class _Numbering:
    """Gives classes their numbers: the next free one, or the one that another client's equal token has."""

    def __init__(self, roster: FederationRoster) -> None:
        self.count = roster.classes
        self._known = {
            token: number
            for one in roster.clients
            for token, number in zip(one.people or (), one.holds or (), strict=False)
        }

    def holds(
        self, site: str, before: RosterClient | None, classes: int, tokens: tuple[str, ...] | None
    ) -> tuple[int, ...]:
        """Return the classes of a client; those that it had come first."""
        held = () if before is None else before.holds or ()
        told = () if before is None else before.people or ()
        if len(held) > classes or (tokens is not None and tokens[: len(told)] != told):
            raise RunError(
                f"the people of {site} must stay in their order and only grow ({len(held):,} when it joined), got "
                f"{classes:,}: restore its state/identities.json from a backup"
            )
        return held + tuple(self._number(None if tokens is None else tokens[i]) for i in range(len(held), classes))

    def _number(self, token: str | None) -> int:
        number = self.count if token is None else self._known.setdefault(token, self.count)
        self.count += number == self.count
        return number


def _tokens(site: str, words: ClientWords, matched: bool) -> tuple[str, ...] | None:
    if not matched:
        return None
    tokens = tuple(words.people or ())
    if len(tokens) != words.classes or len(set(tokens)) != len(tokens):
        raise RunError(
            f"{site} must send one token for each of its {words.classes:,} people, got {len(set(tokens)):,} different"
        )
    return tokens


def read_roster(path: Path) -> FederationRoster:
    """Read the roster of a federation; an empty one if there is none."""
    if not path.exists():
        return FederationRoster()
    try:
        return FederationRoster.model_validate_json(read_file(path, LARGE))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        reason = ": ".join(filter(None, (".".join(map(str, first["loc"]))[:100], first["msg"])))
        raise RunError(
            f"the roster '{path}' is damaged ({reason}): restore it from a backup, because with other numbers clients "
            "would get other clients' state"
        ) from None


def write_roster(path: Path, roster: FederationRoster) -> None:
    """Write the roster of a federation, which only its owner can read: tokens of people are in it."""
    write_atomically(path, roster.model_dump_json(indent=1, exclude_defaults=True).encode(), private=True)
