"""Secure rounds on the coordinator: it relays keys and shares, adds up masked sums, and learns the sum alone.

What was decided (the round's name, and who came through which stage) is on the disk before the next stage begins, and
answers are in the inbox. So a coordinator that is killed goes on with the same round, and asks no site for anything
that it has not asked before.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from fedra.core.job import ServerJob
from fedra.core.released_fold import Layout, upload_blocks
from fedra.core.tree import Tree
from fedra.errors import RunError
from fedra.experiment.cohort import Expected
from fedra.experiment.private_run import blank_upload, largest_size, release_terms
from fedra.experiment.secure_run import ring_vectors
from fedra.federation import keys
from fedra.federation.exchange import Asked, Exchange, Watch
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.packet_files import Inbox
from fedra.federation.secure.secure_wire import (
    KeysAnswer,
    KeysAsk,
    MaskedAnswer,
    MaskedAsk,
    MemberWords,
    RollAsk,
    SharesAsk,
    UnmaskAsk,
    read_secure,
    to_hex,
)
from fedra.federation.wire import Packet, TrainAsk, WireError, Words, packet
from fedra.privacy.secure.secure_messages import FEWEST, Roll, SecureRoundError
from fedra.privacy.secure.secure_server import ServerRound
from fedra.runners.base import Absent, Summed
from fedra.writing import write_atomically

RECORD = "secure-round.json"
PAUSE = 2.0
"""Seconds before sites that did not unmask are asked again."""
KEPT = "kept"
"""Where the server stores which version of its state a client keeps at its site."""


@dataclass(frozen=True)
class WantedSum:
    """What a secure round adds up.

    Args:
        job: The server's job.
        round: The round.
        attempt: The attempt at it.
        expected: What a client sends.
        clip: The clip norm under differential privacy.
        groups: The clients that are asked, by site.
    """

    job: ServerJob
    round: int
    attempt: int
    expected: Expected
    clip: float | None
    groups: Mapping[str, Sequence[int]]


class _Record(BaseModel):
    """What was decided in a secure round: its terms, and the sites that came through each stage."""

    model_config = ConfigDict(extra="forbid")
    round: int
    attempt: int
    asks: dict[str, KeysAsk]
    passed: dict[str, list[str]] = {}
    failed: bool = False

    def clients(self) -> list[int]:
        """Return the clients that are asked."""
        return sorted(client for ask in self.asks.values() for client in ask.clients)


@dataclass
class SecureRounds:
    """Runs secure rounds with the sites.

    Args:
        plan: The plan.
        exchange: Sends questions and takes answers.
        inbox: Where answers are.
        watch: The state of the sites.
        folder: The coordinator's folder, for the record of the running round.
        certificates: The certificate of each admitted site.
    """

    plan: FederationPlan
    exchange: Exchange
    inbox: Inbox
    watch: Watch
    folder: Path
    certificates: Callable[[], Mapping[str, str]]

    def run(self, wanted: WantedSum, question: Callable[[str, int], Packet]) -> Iterator[Summed | Absent]:
        """Run one round.

        Args:
            wanted: What is added up.
            question: The plain question of training to a site, for an attempt.
        """
        record = self._open(wanted)
        one = _Round(self, record, question)
        try:
            yield from one.run()
        except SecureRoundError as error:
            record.failed = True
            self.save(record)
            self.watch.tell(f"round {record.round + 1}: {error}")
            for site, ask in record.asks.items():
                yield Absent(ask.clients, one.problems.get(site, str(error)))

    def save(self, record: _Record) -> None:
        """Write what was decided."""
        write_atomically(self.folder / RECORD, record.model_dump_json().encode())

    def _open(self, wanted: WantedSum) -> _Record:
        """Return the record of a round: the unfinished one of the same round, or a new one."""
        round, attempt = wanted.round, wanted.attempt
        path = self.folder / RECORD
        if path.exists():
            known = _Record.model_validate_json(path.read_bytes())
            same = known.clients() == sorted(client for clients in wanted.groups.values() for client in clients)
            if known.round == round and not known.failed and (same or "roll" in known.passed):
                return known
            if known.round == round:
                attempt = max(attempt, known.attempt + 1)
        record = _Record(round=round, attempt=attempt, asks=self._asks(replace(wanted, attempt=attempt)))
        self.save(record)
        return record

    def _asks(self, wanted: WantedSum) -> dict[str, KeysAsk]:
        job, groups = wanted.job, wanted.groups
        terms, certificates = release_terms(job, wanted.round), self.certificates()
        layout = Layout.of(upload_blocks(job.algorithm, blank_upload(wanted.expected), terms))
        vectors = ring_vectors(self.plan.config, sum(map(len, groups.values())), layout.length, wanted.clip)
        members = [
            MemberWords(number=number, site=site, certificate=certificates.get(site, ""), clients=len(groups[site]))
            for number, site in enumerate(sorted(groups))
        ]
        name = secrets.token_hex(16)
        return {
            one.site: KeysAsk(
                plan=self.plan.digest,
                round=wanted.round,
                attempt=wanted.attempt,
                name=name,
                number=one.number,
                members=members,
                clients=list(groups[one.site]),
                layout=layout.digest,
                length=vectors.size,
                mechanism=vectors.words,
                clip=wanted.clip,
                steps=terms.steps,
                equal_steps=terms.equal_steps,
                largest=largest_size(job),
            )
            for one in members
        }


@dataclass
class _Round:
    """One secure round, stage by stage; sites are called by name, members of the protocol by number."""

    rounds: SecureRounds
    record: _Record
    question: Callable[[str, int], Packet]
    problems: dict[str, str] = field(default_factory=dict)

    def run(self) -> Iterator[Summed | Absent]:
        """Yield the sum over the sites that answered, and who is missing from it."""
        asks, server, number = self.record.asks, self.server, self.numbers
        published = {number[site]: words.keys() for site, words in self._stage("keys", asks, self._check_keys).items()}
        self._require(len(published) >= FEWEST, f"a secure round needs at least {FEWEST} sites, got {len(published)}")
        neighbors = server.relay_keys(published)
        shared = self._stage(
            "shares",
            {site: self._shares_ask(neighbors[number[site]].keys) for site in self.record.passed["keys"]},
            self._check_shares,
        )
        delivered = server.relay_shares({number[site]: words.shares() for site, words in shared.items()})
        masked = {site: self._masked_packet(site, to_hex(delivered[number[site]].boxes)) for site in shared}
        trained: dict[str, MaskedAnswer] = self._stage("masked", masked, self._check_masked)
        for site in trained:
            server.add_masked(number[site], self._vector(self._answer("masked", site, masked[site])))
        roll = server.call_roll()
        signatures = self._signatures(roll, trained)
        self._unmask(roll, signatures)
        yield self._summed(server.finish(), trained, masked)
        for site, ask in asks.items():
            if missing := [client for client in ask.clients if client not in self._clients_of(trained.get(site))]:
                yield Absent(missing, self.problems.get(site, "its site did not come through the secure round"))

    @cached_property
    def server(self) -> ServerRound:
        """The server of the protocol."""
        ask = next(iter(self.record.asks.values()))
        return ServerRound(ask.announcement(self.rounds.plan.config.secure))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each site in the protocol."""
        return {site: ask.number for site, ask in self.record.asks.items()}

    # stages

    def _stage(
        self, kind: str, questions: Mapping[str, Words | Packet], check: Callable[[str, Any, Packet], None]
    ) -> dict[str, Any]:
        """Ask sites, and return the checked words of those that came through; the others are out from here on."""
        packets = {site: one if isinstance(one, Packet) else packet(kind, one) for site, one in questions.items()}
        decided = self.record.passed.get(kind)
        if decided is None:
            self._exchange(packets)
        found = {}
        for site in packets if decided is None else decided:
            try:
                answer = self._answer(kind, site, packets[site])
                words = read_secure(answer, kind)
                check(site, words, answer)
                found[site] = words
            except WireError as error:
                if decided is not None:
                    raise SecureRoundError(f"the answer of {site} is not in the inbox anymore") from None
                if site not in self.problems:
                    self.problems[site] = f"refused: {error}"
                    self.rounds.exchange.strike(site, str(error))
        self.record.passed[kind] = list(found)
        self.rounds.save(self.record)
        return found

    def _exchange(self, packets: Mapping[str, Packet]) -> None:
        asked = [Asked(site, one, tuple(self.record.asks[site].clients)) for site, one in packets.items()]
        self.rounds.exchange.exchange(asked, self.record.round + 1)
        for one in asked:
            if one.problem is not None:
                self.problems[one.site] = one.problem

    def _answer(self, kind: str, site: str, question: Packet) -> Packet:
        answer = self.rounds.inbox.get(site, question.digest)
        if answer is None:
            raise WireError(f"it did not answer '{kind}'")
        return answer

    def _shares_ask(self, neighbors: Mapping[int, Any]) -> SharesAsk:
        words = {member: KeysAnswer.of(one) for member, one in neighbors.items()}
        return SharesAsk(plan=self.rounds.plan.digest, name=self._name, keys=words)

    def _masked_packet(self, site: str, boxes: dict[int, str]) -> Packet:
        plain = self.question(site, self.record.attempt)
        words = MaskedAsk(**plain.read(TrainAsk).model_dump(), name=self._name, boxes=boxes)
        return packet("masked", words, plain.blobs)

    def _signatures(self, roll: Roll, trained: Mapping[str, object]) -> dict[int, bytes]:
        terms = {"answered": list(roll.answered), "dropped": list(roll.dropped)}
        ask = RollAsk(plan=self.rounds.plan.digest, name=self._name, **terms)
        signed = self._stage("roll", dict.fromkeys(trained, ask), self._check_signature(roll))
        return {self.numbers[site]: bytes.fromhex(words.signature) for site, words in signed.items()}

    def _unmask(self, roll: Roll, signatures: Mapping[int, bytes]) -> None:
        """Ask for shares until there are enough: sites that revealed theirs refuse to repeat the round."""
        terms = {"answered": list(roll.answered), "dropped": list(roll.dropped), "signatures": to_hex(signatures)}
        ask = packet("unmask", UnmaskAsk(plan=self.rounds.plan.digest, name=self._name, **terms))
        waiting = list(self.record.passed["roll"])
        told = False
        while True:
            self._exchange(dict.fromkeys(waiting, ask))
            for site in list(waiting):
                answer = self.rounds.inbox.get(site, ask.digest)
                if answer is not None:
                    self.server.add_revealed(self.numbers[site], read_secure(answer, "unmask").revealed())
                    waiting.remove(site)
            if self.server.may_finish():
                return
            if not waiting:
                raise RunError(
                    f"round {self.record.round + 1} cannot be unmasked: the sites revealed too few shares, and none is "
                    "left to ask"
                )
            if not told:
                self.rounds.watch.tell(f"paused: {', '.join(waiting)} must help to open the sum of the round")
                told = True
            time.sleep(PAUSE)

    # checks that a masked round allows

    def _check_keys(self, site: str, words: Any, answer: Packet) -> None:
        ask = self.record.asks[site]
        certificate = keys.parse_certificate(ask.members[ask.number].certificate, f"the record of '{site}'")
        published = words.keys()
        if not keys.has_signed(
            certificate, published.signed_part(self.server.announcement, ask.number), published.signature
        ):
            raise WireError("the keys of a secure round must carry its signature")

    def _check_shares(self, site: str, words: Any, answer: Packet) -> None:
        there = {self.numbers[other] for other in self.record.passed["keys"]}
        if set(words.boxes) != there & set(self.server.neighbors(self.numbers[site])):
            raise WireError("it must send shares to each of its neighbors, and to no other site")

    def _check_masked(self, site: str, words: Any, answer: Packet) -> None:
        ask = self.record.asks[site]
        if not words.clients or not set(words.clients) <= set(ask.clients):
            raise WireError("its sum must be over clients that were asked, and over at least one")
        self._vector(answer)

    def _check_signature(self, roll: Roll) -> Callable[[str, Any, Packet], None]:
        def check(site: str, words: Any, answer: Packet) -> None:
            if not self._has_signed(site, roll.signed_part(self.server.announcement), bytes.fromhex(words.signature)):
                raise WireError("its signature of the roll is wrong")

        return check

    def _has_signed(self, site: str, words: bytes, signature: bytes) -> bool:
        ask = self.record.asks[site]
        certificate = next(one.certificate for one in ask.members if one.number == ask.number)
        return keys.has_signed(keys.parse_certificate(certificate, f"the record of '{site}'"), words, signature)

    def _vector(self, answer: Packet) -> np.ndarray:
        tensors = answer.tree("own")
        masked = tensors.get("masked")
        length = self.server.announcement.length
        fits = isinstance(masked, torch.Tensor) and masked.dtype == torch.int32 and tuple(masked.shape) == (length,)
        if masked is None or not fits or len(tensors) != 1:
            raise WireError(f"a masked sum must be {length} numbers of 32 bits and nothing else")
        return np.asarray(masked.numpy().view(np.uint32))

    # results

    def _summed(self, total: np.ndarray, trained: Mapping[str, MaskedAnswer], sent: Mapping[str, Packet]) -> Summed:
        version = torch.tensor((self.record.round, self.record.attempt))
        memories: dict[int, Tree] = {}
        restarted: dict[int, str] = {}
        bytes_up: dict[int, int] = {}
        for site, words in trained.items():
            memories |= {client: {KEPT: {"version": version}} for client in words.remembers}
            restarted |= words.restarted
            share = self._answer("masked", site, sent[site]).nbytes // len(words.clients)
            bytes_up |= dict.fromkeys(words.clients, share)
        order = [client for site in trained for client in trained[site].clients]
        return Summed(order, total, memories, restarted, bytes_up, asked=len(self.record.clients()))

    def _clients_of(self, words: MaskedAnswer | None) -> list[int]:
        return [] if words is None else words.clients

    @property
    def _name(self) -> str:
        return next(iter(self.record.asks.values())).name

    def _require(self, holds: bool, sentence: str) -> None:
        if not holds:
            raise SecureRoundError(sentence)
