"""Exchange questions and answers with sites: who is there, who is late, who is away, who refuses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedra.errors import RunError
from fedra.experiment.cohort import FaultRule
from fedra.federation import wire
from fedra.federation.federation_plan import FederationSection
from fedra.federation.link import NOT_ADMITTED, REFUSED_ANSWER, Answer, Link
from fedra.federation.packet_files import Inbox
from fedra.federation.wire import Packet, Refusal, WireError, read_answer

STEP = 0.5
"""Seconds between two looks at who is away."""
STRIKES = 3
"""Refused answers in a row after which a site is not asked anymore."""


@dataclass
class Asked:
    """A question to a site about some of its clients."""

    site: str
    question: Packet
    clients: tuple[int, ...]
    ticket: int | None = None
    problem: str | None = None
    done: bool = False
    sent: float = 0.0


@dataclass
class SiteState:
    """What the coordinator knows of a site during a run, for the table on the terminal."""

    state: str = "expected"
    round: int = 0
    seconds: float | None = None
    examples: int = 0
    train_loss: float | None = None
    accuracy: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    refused: int = 0
    reason: str | None = None


@dataclass
class Watch:
    """Functions that are called with what happens."""

    tell: Callable[[str], None] = lambda line: None
    changed: Callable[[], None] = lambda: None
    sites: dict[str, SiteState] = field(default_factory=dict)
    durable: Callable[[], int] = lambda: 0
    stop: Callable[[], bool] = lambda: False


class Exchange:
    """Sends questions and takes answers by the federation's rules; answers to training are written to the inbox."""

    def __init__(self, rules: FederationSection, link: Link, inbox: Inbox, watch: Watch) -> None:
        self._rules, self._link, self._inbox, self._watch = rules, link, inbox, watch
        self._opened = time.monotonic()

    def present(self) -> list[str]:
        """Return the sites that gave a sign of life lately."""
        return self._link.present()

    def wait_for_sites(self, asked: Sequence[Asked]) -> None:
        """Pause until enough sites are there: a real federation is not thrown away because sites are away."""
        wanted = {one.site for one in asked}
        paused = sum(self._watch.sites[site].state == "paused" for site in wanted)
        least = min(self._rules.least, len(wanted))
        need = max(least, math.ceil(FaultRule().quorum * len(wanted)))
        if len(wanted) - paused < least:
            reasons = ", ".join(f"{site}: {self._watch.sites[site].reason}" for site in sorted(wanted))
            raise RunError(f"at least {least} sites must take part, but too many are paused ({reasons})")
        told = False
        while len(wanted & set(self._link.present())) < min(need, len(wanted) - paused):
            if not told:
                away = sorted(wanted - set(self._link.present()))
                self._watch.tell(f"paused: waiting for {', '.join(away)} (at least {need} sites must be there)")
                told = True
            if self._watch.stop():
                raise KeyboardInterrupt
            self._look()
            time.sleep(STEP)

    def wait_for(self, sites: Iterable[str]) -> None:
        """Wait for sites, each until it gave no sign of life for as long as the federation is patient."""
        told = False
        while away := [site for site in sites if site not in self._link.present() and self._is_awaited(site)]:
            if not told:
                self._watch.tell(f"waiting for {', '.join(sorted(away))}")
                told = True
            if self._watch.stop():
                return
            self._look()
            time.sleep(STEP)

    def _is_awaited(self, site: str) -> bool:
        seen = self._link.last_seen(site)
        return (time.monotonic() - self._opened if seen is None else seen) <= self._rules.patience

    def exchange(self, asked: Sequence[Asked], round: int) -> None:
        """Send all questions and write the answers to the inbox, until all came or the deadline passed."""
        until = time.monotonic() + self._rules.deadline
        pending: dict[int, Asked] = {}
        for one in asked:
            state = self._watch.sites[one.site]
            if state.state == "paused":
                one.problem = f"paused: {state.reason}"
            elif self._inbox.has(one.site, one.question.digest):
                one.done = True
            else:
                self._send(one, until, pending)
            state.round = round
        while pending and time.monotonic() < until:
            self._collect(pending, min(STEP, max(until - time.monotonic(), 0.0)), round)
            self._look()
            present = self._link.present()
            for ticket, one in list(pending.items()):
                seen = self._link.last_seen(one.site)
                if one.site not in present and (seen is None or seen > self._rules.patience):
                    self._link.drop(ticket)
                    del pending[ticket]
                    one.problem = "its site is away"
                    self.set_state(one.site, "away", one.problem)
        for ticket, one in pending.items():
            self._link.drop(ticket)
            one.problem = f"did not answer within the deadline of {self._rules.deadline:g} s"
            self.set_state(one.site, "late", one.problem)

    def _send(self, one: Asked, until: float, pending: dict[int, Asked]) -> None:
        one.sent = time.monotonic()
        one.ticket = self._link.send(one.site, one.question, max(until - one.sent, 1.0) + 60)
        pending[one.ticket] = one
        state = self._watch.sites[one.site]
        state.bytes_down += one.question.nbytes
        self.set_state(one.site, "training")

    def _collect(self, pending: dict[int, Asked], seconds: float, round: int) -> None:
        """Write the answers that came to the inbox; none stays in memory while others are waited for."""
        for ticket, answer in self._link.collect(seconds).items():
            if ticket in pending:
                self._take(pending.pop(ticket), answer, round)

    def _take(self, one: Asked, answer: Answer, round: int) -> None:
        state = self._watch.sites[one.site]
        state.seconds = time.monotonic() - one.sent
        if isinstance(answer, str):
            one.problem = answer
            self.set_state(one.site, "removed" if answer == NOT_ADMITTED else "absent", answer)
            if answer.startswith(REFUSED_ANSWER):
                self.strike(one.site, answer.removeprefix(REFUSED_ANSWER))
            return
        state.bytes_up += answer.nbytes
        if answer.kind == wire.REFUSED:
            one.problem = _refusal(answer)
            self.set_state(one.site, "refuses", one.problem)
            self._watch.tell(f"{one.site} refuses: {one.problem}")
            return
        self._inbox.put(round, one.site, one.question.digest, answer)
        one.done = True
        self.set_state(one.site, "answered")

    def _look(self) -> None:
        self._watch.changed()

    def set_state(self, site: str, state: str, reason: str | None = None) -> None:
        """Set what the table says of a site."""
        known = self._watch.sites[site]
        known.state, known.reason = state, reason
        self._watch.changed()

    def strike(self, site: str, reason: str) -> None:
        """Count a refused answer; after three in a row the site is paused."""
        state = self._watch.sites[site]
        state.refused += 1
        self._watch.tell(f"{site}: refused: {reason}")
        if state.refused >= STRIKES:
            self.set_state(site, "paused", f"{STRIKES} refused answers in a row, the last: {reason}")

    def ask(self, site: str, question: Packet, kind: str) -> object:
        """Ask one site and wait for its checked words; raises a `RunError` with its refusal."""
        (answer,) = self.ask_all({site: question}).values()
        if isinstance(answer, str):
            raise RunError(f"{site}: {answer}")
        return read_answer(answer, kind)

    def ask_all(self, questions: Mapping[str, Packet]) -> dict[str, Answer]:
        """Ask several sites at once; a site that is away or late has the reason in place of its answer."""
        until = time.monotonic() + self._rules.deadline
        tickets = {self._link.send(site, one, self._rules.deadline + 60): site for site, one in questions.items()}
        found: dict[str, Answer] = {}
        while tickets and time.monotonic() < until:
            for ticket, answer in self._link.collect(min(STEP, max(until - time.monotonic(), 0.0))).items():
                if ticket in tickets:
                    found[tickets.pop(ticket)] = answer
            self._look()
            for ticket, site in list(tickets.items()):
                seen = self._link.last_seen(site)
                if site not in self._link.present() and (seen is None or seen > self._rules.patience):
                    self._link.drop(ticket)
                    found[tickets.pop(ticket)] = "its site is away"
        for ticket, site in tickets.items():
            self._link.drop(ticket)
            found[site] = f"did not answer within the deadline of {self._rules.deadline:g} s"
        return found


def _refusal(answer: Packet) -> str:
    try:
        return answer.read(Refusal).reason
    except WireError as error:
        return str(error)
