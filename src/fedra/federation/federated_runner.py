"""The runner of a federation: the clients of a round are trained at their sites.

Answers are taken in the cohort's order, whatever the order in which they come, so sums have the same bits as in the
simulator.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedra.core.evaluate import Counts, evaluate
from fedra.core.job import ServerJob
from fedra.core.model import Weights
from fedra.core.tree import Params, Tree
from fedra.core.uploads import norms_of
from fedra.core.view import Upload
from fedra.experiment.cohort import Expected, Form
from fedra.federation import wire
from fedra.federation.exchange import Asked, Exchange, SiteState, Watch
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.link import Answer
from fedra.federation.packet_files import Inbox
from fedra.federation.roster import FederationRoster
from fedra.federation.secure.secure_rounds import KEPT, SecureRounds, WantedSum
from fedra.federation.wire import Packet, Refusal, WireError, packet, read_answer
from fedra.parts.private import PrivateMean
from fedra.runners.base import Absent, Done, Evaluation, Result, Summed, threads

CLIENTS_PER_MESSAGE = 25
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 60.0
"""Seconds before a round is repeated; they double with every repetition."""


class FederatedRunner:
    """Trains each client of a cohort at its site."""

    def __init__(
        self,
        plan: FederationPlan,
        job: ServerJob,
        roster: FederationRoster,
        exchange: Exchange,
        inbox: Inbox,
        watch: Watch,
        secure: SecureRounds | None = None,
    ) -> None:
        self.secure = secure
        self._plan, self._exchange, self._inbox, self._watch = plan, exchange, inbox, watch
        self._rules = plan.federation
        self._attempts: dict[int, int] = {}
        self._forms: dict[str, Form] = {}
        self.versions: dict[int, tuple[int, int]] = {}
        self.changed: set[str] = set()  # sites whose data changed, which are asked to describe themselves anew
        self.round = 0
        self.take(job, roster)

    def take(self, job: ServerJob, roster: FederationRoster) -> None:
        """Go on with this job and these clients."""
        self._job, self.roster = job, roster
        for site in roster.sites():
            self._watch.sites.setdefault(site, SiteState())

    # training

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result | Absent | Summed]:
        attempt = self._attempts[round] = self._attempts.get(round, -1) + 1
        self.round = round + 1
        if attempt and self._watch.stop():
            raise KeyboardInterrupt
        if attempt:
            self._watch.tell(f"round {round + 1} is repeated: too few clients answered")
            time.sleep(min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE))
        self._inbox.forget(self._watch.durable())
        shared = self._shared(origin, received)
        self._forms = {name: Form.of(value) for name, value in origin.params.items()}
        asked = [
            Asked(site, self._train_question(round, attempt, site, clients, shared, memory), tuple(clients))
            for site, clients in self._groups(cohort)
        ]
        self._exchange.wait_for_sites(asked)
        if self.secure is not None:
            yield from self._train_securely(self.secure, (round, attempt), origin, received, cohort, memory)
            return
        self._exchange.exchange(asked, round + 1)
        self._apply_bound(asked)
        self._apply_least(asked)
        by_client = {client: one for one in asked for client in one.clients}
        answers: dict[int, tuple[wire.TrainAnswer, Tree]] = {}
        for client in cohort:
            yield self._result(round, attempt, client, by_client[client], answers)

    def _train_securely(
        self,
        secure: SecureRounds,
        where: tuple[int, int],
        origin: Weights,
        received: Tree,
        cohort: Sequence[int],
        memory: Callable[[int], Tree],
    ) -> Iterator[Absent | Summed]:
        """Train a cohort whose updates are seen as a sum alone: one message to each site, over all its clients."""
        shared = self._shared(origin, received)
        groups: dict[str, list[int]] = {}
        for client in cohort:
            groups.setdefault(self.roster.site_of(client), []).append(client)
        clip = received.get(PrivateMean().name, {}).get("clip")
        wanted = WantedSum(
            self._job,
            *where,
            Expected.of_weights(self._job, origin, received),
            None if clip is None else float(clip),
            groups,
        )
        for some in secure.run(
            wanted, lambda site, attempt: self._train_question(where[0], attempt, site, groups[site], shared, memory)
        ):
            if isinstance(some, Summed):
                self.versions |= {
                    client: version for client in some.memories if (version := version_of(some.memories[client]))
                }
            yield some

    def _train_question(
        self,
        round: int,
        attempt: int,
        site: str,
        clients: Sequence[int],
        shared: bytes,
        memory: Callable[[int], Tree],
    ) -> Packet:
        states = {client: memory(client) for client in clients}
        found = {client: version for client, state in states.items() if (version := version_of(state)) is not None}
        self.versions |= found
        named = self._named(found)
        words = wire.TrainAsk(
            plan=self._plan.digest,
            round=round,
            attempt=attempt,
            cohort=list(clients),
            clients=self._job.population.clients,
            examples=self._job.population.examples,
            memory=named,
            durable=self._watch.durable(),
        )
        own = {str(client): rows for client, state in states.items() if (rows := self._rows(client, state, named))}
        return packet("train", words, {"shared": shared, "own": wire.encode_tree(own)})

    def _named(self, versions: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """Return the versions that clients may begin with: none from before their classes grew."""
        return {c: version for c, version in versions.items() if version[0] >= self.roster.clients[c].since}

    def _rows(self, client: int, state: Tree, named: Mapping[int, object]) -> Params:
        """Return the rows that a client receives: all owned ones at first, then those that it returns."""
        sharing = self._job.algorithm.sharing
        if self._job.owners is None:
            return {}
        values = state.get(sharing.name, {})
        sent = sharing.is_returned if client in named else sharing.is_owned
        return {name: value for name, value in values.items() if sent(name)}

    def _shared(self, origin: Weights, received: Tree) -> bytes:
        traveling = self._job.algorithm.sharing.traveling(origin)
        return wire.encode_tree({"params": traveling.params, "buffers": traveling.buffers, "received": received})

    def _groups(self, cohort: Sequence[int]) -> list[tuple[str, list[int]]]:
        by_site: dict[str, list[int]] = defaultdict(list)
        for client in cohort:
            by_site[self.roster.site_of(client)].append(client)
        return [
            (site, clients[start : start + CLIENTS_PER_MESSAGE])
            for site, clients in by_site.items()
            for start in range(0, len(clients), CLIENTS_PER_MESSAGE)
        ]

    # answers

    def _result(
        self,
        round: int,
        attempt: int,
        client: int,
        one: Asked,
        answers: dict[int, tuple[wire.TrainAnswer, Tree]],
    ) -> Result | Absent:
        if one.problem is not None:
            return Absent((client,), one.problem)
        try:
            if id(one) not in answers:
                answers.clear()  # at most one answer is in memory
                answers[id(one)] = self._read(one)
            words, tensors = answers[id(one)]
            found = next((found for found in words.trained if found.client == client), None)
            if found is None:
                raise WireError("its site sent no result for it")
            result = self._upload(round, attempt, client, found, tensors.get(str(client), {}))
        except WireError as error:
            self._exchange.strike(one.site, str(error))
            return Absent((client,), f"refused: {error}")
        state = self._watch.sites[one.site]
        state.refused, state.examples = 0, found.examples
        state.train_loss = found.metrics.get("train_loss")
        if result.memory:
            self.versions[client] = (round, attempt)
        return result

    def _read(self, one: Asked) -> tuple[wire.TrainAnswer, Tree]:
        answer = self._inbox.get(one.site, one.question.digest)
        if answer is None:
            raise WireError("its answer on the coordinator's disk is damaged")
        words: wire.TrainAnswer = read_answer(answer, "train")
        if sorted(found.client for found in words.trained) != sorted(one.clients):
            raise WireError("its site answered for other clients than it was asked about")
        self.changed |= {one.site} if words.changed else set()
        return words, answer.tree("own")

    def _upload(self, round: int, attempt: int, client: int, words: wire.TrainedWords, tensors: Tree) -> Result:
        undeclared = set(tensors) - {"delta", "packed", "buffers", "extras"}
        delta = self._change(tensors)
        flat = [*delta.values(), *tensors.get("buffers", {}).values()]
        if undeclared or not all(isinstance(value, Tensor) for value in flat):
            raise WireError("it sent tensors that the plan does not declare")
        metrics = {name: math.nan if value is None else value for name, value in words.metrics.items()}
        metrics.setdefault("train_loss", math.nan)
        metrics["update_norm"] = _norm(delta)
        upload = Upload(
            delta=delta,
            buffers=tensors.get("buffers", {}),
            examples=words.examples,
            steps=words.steps,
            effective_steps=words.effective_steps,
            extras=tensors.get("extras", {}),
            metrics=metrics,
            broken_step=words.broken_step,
        )
        kept = {KEPT: {"version": torch.tensor((round, attempt))}} if words.remembers else {}
        return Result(client, kept, upload, words.restarted)

    def _change(self, tensors: Tree) -> Params:
        """Return the change in an upload, unpacked if the algorithm has an upload rule."""
        rule = self._job.algorithm.upload
        if ("packed" in tensors) != (rule is not None):
            raise WireError("it sent its change in another form than the plan declares")
        if rule is None:
            delta: Params = tensors.get("delta", {})
            return delta
        if unknown := tensors["packed"].keys() - self._forms.keys():
            raise WireError(f"sent the unknown parameter '{min(unknown)[:80]}'")
        try:
            packed = {name: (tensors["packed"][name], self._forms[name]) for name in tensors["packed"]}
            return {name: rule.unpack(values, form.shape, form.dtype) for name, (values, form) in packed.items()}
        except (ValueError, KeyError, AttributeError, TypeError, RuntimeError) as error:
            raise WireError(f"its packed change cannot be read ({type(error).__name__})") from None

    def _apply_bound(self, asked: Sequence[Asked]) -> None:
        """Refuse updates that are longer than `bound` times the round's median."""
        if not self._rules.bound:
            return
        norms: dict[int, float] = {}
        for one in asked:
            if one.done and one.problem is None:
                try:
                    norms |= self._norms(one)
                except (WireError, KeyError, AttributeError, RuntimeError):
                    continue  # refused later, with its reason
        finite = [norm for norm in norms.values() if math.isfinite(norm)]
        if len(finite) < 3:  # a median of two does not tell which one is wrong
            return
        middle = statistics.median(finite)
        for one in asked:
            for client in one.clients:
                if norms.get(client, 0.0) > self._rules.bound * middle > 0:
                    one.problem = (
                        f"refused: its update is {norms[client] / middle:.3g} times as long as the round's median "
                        f"(bound {self._rules.bound:g})"
                    )
                    self._exchange.strike(one.site, one.problem.removeprefix("refused: "))

    def _norms(self, one: Asked) -> dict[int, float]:
        """Return the length of each client's change; the answer is in memory no longer than that."""
        _, tensors = self._read(one)
        return {client: _norm(self._change(tensors[str(client)])) for client in one.clients}

    def _apply_least(self, asked: Sequence[Asked]) -> None:
        """Combine no fewer sites than `least`: of one alone, the new model shows its update."""
        answered = {one.site for one in asked if one.done and one.problem is None}
        if len(answered) < min(self._rules.least, len({one.site for one in asked})):
            for one in asked:
                one.problem = one.problem or f"fewer than {self._rules.least} sites answered"

    # tests

    def ask_tests(
        self, round: int, weights: Weights, received: Tree, final: bool = False
    ) -> dict[str, list[wire.EvaluatedWords] | str]:
        """Ask all sites to test the model on their held-out data; a reason in place of what a site did not send."""
        job, digest = self._job, self._plan.digest
        shared = self._shared(job.common(weights), received)
        questions = {}
        for site in self.roster.sites():
            clients = self.roster.numbers(site)
            named = self._named({client: self.versions[client] for client in clients if client in self.versions})
            states = {client: job.client_state(client, weights, {}) for client in clients}
            own = {str(client): rows for client, state in states.items() if (rows := self._rows(client, state, named))}
            words = wire.EvaluateAsk(plan=digest, round=round, cohort=clients, memory=named, final=final)
            questions[site] = packet("evaluate", words, {"shared": shared, "own": wire.encode_tree(own)})
        found: dict[str, list[wire.EvaluatedWords] | str] = dict.fromkeys(questions, "its site is away")
        for site, answer in self._ask_final(questions, round) if final else self._ask_present(questions):
            tests = _tests(answer, self.roster.numbers(site)) if isinstance(answer, Packet) else answer
            found[site] = tests if isinstance(tests, str) else tests.tested
            self.changed |= {site} if isinstance(tests, wire.EvaluateAnswer) and tests.changed else set()
        return found

    def _ask_present(self, questions: Mapping[str, Packet]) -> Iterable[tuple[str, Answer]]:
        """Ask the sites that are there."""
        present = set(self._exchange.present())
        return self._exchange.ask_all({site: one for site, one in questions.items() if site in present}).items()

    def _ask_final(self, questions: Mapping[str, Packet], round: int) -> Iterable[tuple[str, Answer]]:
        """Ask each site until its answer is on the disk: a site leaves when it has answered, and may be away now."""
        kept = {site: self._inbox.get(site, one.digest) for site, one in questions.items()}
        missing = {site: questions[site] for site, answer in kept.items() if answer is None}
        self._exchange.wait_for(missing)
        for site, answer in self._ask_present(missing):
            if isinstance(answer, Packet) and answer.kind != wire.REFUSED:
                self._inbox.put(round + 1, site, missing[site].digest, answer)
            yield site, answer
        yield from ((site, answer) for site, answer in kept.items() if answer is not None)

    def note_tests(self, found: Mapping[str, list[wire.EvaluatedWords] | str]) -> None:
        """Remember each site's own test for the table."""
        for site, tests in found.items():
            if not isinstance(tests, str) and tests:
                count = sum(one.examples for one in tests)
                self._watch.sites[site].accuracy = sum(one.correct for one in tests) / max(count, 1)

    def site_lines(self, round: int) -> list[dict[str, Any]]:
        """Return the lines of sites.jsonl for a round."""
        return [{"round": round, "site": site, **vars(state)} for site, state in self._watch.sites.items()]

    def evaluate(self, weights: Weights) -> Counts:
        job, examples = self._job, self._job.evaluated_examples
        assert examples is not None, "the coordinator has no test set"
        with threads(1):
            return evaluate(job.model, weights, examples, job.classes, job.keep_scores)

    def start_evaluation(self, weights: Weights) -> Evaluation:
        return Done(self.evaluate(weights))

    def close(self) -> None:
        """Leave the link open: it outlives a run."""


def version_of(state: Tree) -> tuple[int, int] | None:
    """Return the version that a client keeps at its site, as the server stored it."""
    stored = state.get(KEPT, {}).get("version")
    if stored is None:
        return None
    round, attempt = stored.tolist()
    return int(round), int(attempt)


def _tests(answer: Packet, clients: Sequence[int]) -> wire.EvaluateAnswer | str:
    try:
        words: wire.EvaluateAnswer | Refusal = read_answer(answer, "evaluate")
    except WireError as error:
        return f"refused: {error}"
    if isinstance(words, Refusal):
        return words.reason
    wrong = [one for one in words.tested if one.client not in clients or one.correct > one.examples]
    return "refused: its counts cannot be right" if wrong else words


def _norm(delta: Params) -> float:
    try:
        stacked = {name: value.unsqueeze(0) for name, value in delta.items()}
        return norms_of(stacked, 1)[0]
    except (RuntimeError, AttributeError, TypeError):
        return math.nan
