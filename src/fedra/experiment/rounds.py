"""The rounds of a run: sample a cohort, train it, reject invalid uploads, combine the others, test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import torch

from fedra.callbacks.callback import RoundReport
from fedra.core.job import ServerJob
from fedra.core.private_steps import private_steps
from fedra.core.round import broadcast
from fedra.core.tree import Tree
from fedra.core.view import Server
from fedra.errors import RunFailed
from fedra.experiment import optional
from fedra.experiment.cohort import Expected, FaultRule, is_figure, possible_sizes, rejection_reasons
from fedra.experiment.evaluators.evaluator import EvaluationOutcome, RoundTest
from fedra.experiment.plan import FactorObserver, Plan, RoundFold
from fedra.runners.base import Absent, Result, Results, Runner, Summed
from fedra.runners.stacked_states import StackedTrees, StateGroup, recall_each
from fedra.storage.client_state import ClientStates, PackedTree, group_by_stack
from fedra.storage.state import State


@dataclass(frozen=True)
class Start:
    """The start of a round; `ahead` has client states of the previous round while its test is still running."""

    round: int
    server: Server
    memories: ClientStates
    ahead: Mapping[int, PackedTree] = field(default_factory=dict)

    def find(self, clients: Sequence[int]) -> list[PackedTree | None]:
        """Return the clients' states, None for those without one."""
        if not self.ahead:
            return self.memories.find(clients)
        others = [client for client in clients if client not in self.ahead]
        found: dict[int, PackedTree | None] = dict(zip(others, self.memories.find(others), strict=True))
        return [self.ahead.get(client, found.get(client)) for client in clients]


@dataclass(frozen=True)
class Recall:
    """Returns clients' states at the start of a round, with what the round adds to each."""

    job: ServerJob
    plan: Plan
    start: Start

    def __call__(self, client: int) -> Tree:
        """Return the state of one client."""
        (found,) = self.start.find([client])
        stored = {} if found is None else found.tree()
        memory = self.job.client_state(client, self.start.server.weights, stored)
        return self.plan.folding.prepare(self.job, self.start.round, client, memory)

    def groups(self, clients: Sequence[int]) -> list[StateGroup]:
        """Return the states of several clients, in stacks as they are stored unless the round adds to each."""
        if self.job.owners is not None or private_steps(self.job.algorithm) is not None:
            return recall_each(self, clients)
        stored = group_by_stack(self.start.find(clients))
        return [StateGroup(indices, StackedTrees(values, len(indices))) for indices, values in stored]


@dataclass(frozen=True)
class TrainedRound:
    """The result of a round's training."""

    server: Server
    memory: dict[int, PackedTree]
    lines: list[dict[str, Any]]
    examples: int
    seconds: float


@dataclass(frozen=True)
class Tested:
    """A trained round whose test is finished or still running."""

    start: Start
    trained: TrainedRound
    test: RoundTest

    def report(self, job: ServerJob, plan: Plan) -> RoundReport:
        """Wait for the test and return the report of the round."""
        waited = time.perf_counter()
        outcome = self.test.outcome()
        metrics = _metrics(job, self.start, outcome, self.trained.lines)
        metrics["bytes_down"] *= plan.traffic
        for observer in plan.observers:
            metrics |= observer.round(self.trained.server, outcome.counts)
        metrics["seconds"] = round(self.trained.seconds + time.perf_counter() - waited, 4)
        lines = self.trained.lines if plan.folding.may_record_clients() else []
        return RoundReport(plan.folding.record(self.trained.server, metrics), lines, self.trained.examples)


def ignore(_: object) -> None:
    """Default hook, which does nothing."""


def rounds(
    job: ServerJob,
    runner: Runner,
    plan: Plan,
    state: State,
    on_round: Callable[[int], None] = ignore,
    on_client: Callable[[dict[str, Any]], None] = ignore,
    held: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[RoundReport]:
    """Train from `state` to the last round of the plan, advancing `state` after each round.

    `on_round` is called with the number of each round that starts, from 1; `on_client` with the record of each client
    that finishes. `held` is entered before `state` advances and left when the next round is requested, so no signal can
    come between. If the runner can test alongside the next round's training, the round is yielded and `state` advanced
    when that training is finished.
    """
    expected = Expected.of(job, state.server)

    def finish(tested: Tested) -> Iterator[RoundReport]:
        report = tested.report(job, plan)
        with held():
            state.advance(tested.trained.server, tested.trained.memory)
            yield report

    before: Tested | None = None
    while before is not None or state.round < plan.rounds:
        start = _start(state, before)
        trained = None
        try:
            if start.round < plan.rounds:
                on_round(start.round + 1)
                trained = _train(job, runner, plan, start, expected, on_client)
        except (Exception, KeyboardInterrupt):
            if before is not None:  # the previous round is complete and must not be lost with this one
                yield from finish(before)
            raise
        if before is not None:
            yield from finish(before)
            before = None
        if trained is not None:
            tested = Tested(start, trained, _start_test(job, runner, plan, start.round, trained.server))
            # An observer collects data during a round, so it must report before the next round starts.
            if tested.test.ready or plan.observers:
                yield from finish(tested)
            else:
                before = tested


def _start(state: State, before: Tested | None) -> Start:
    """Return the start of the next round: the state, or the newer trained round whose test is still running."""
    if before is None:
        return Start(state.round, state.server, state.memory)
    return Start(before.start.round + 1, before.trained.server, state.memory, before.trained.memory)


def _start_test(job: ServerJob, runner: Runner, plan: Plan, round: int, server: Server) -> RoundTest:
    due = (round + 1) % plan.evaluate_every == 0 or round + 1 == plan.rounds
    return plan.evaluator(job, runner, server.weights) if due else EvaluationOutcome()


def _train(
    job: ServerJob,
    runner: Runner,
    plan: Plan,
    start: Start,
    expected: Expected,
    on_client: Callable[[dict[str, Any]], None],
) -> TrainedRound:
    """Train one round, repeated with another cohort if too few clients respond; failed attempts are discarded."""
    started = time.perf_counter()
    failed: list[dict[str, Any]] = []
    for number in range(plan.faults.retries + 1):
        cohort = plan.folding.admit(start.server, plan.cohort.sample(job.clients, job.seed, start.round, number))
        fold = plan.folding.fold(job, start.server, start.round, number, expected)
        attempt = RoundAttempt(job, plan, start, number, expected, on_client, fold)
        attempt.train(runner, cohort)
        if not plan.faults.enough(fold.uploads, len(cohort), plan.folding.least):
            failed += attempt.lines
            continue
        try:
            server = fold.finish(start.server, job.population, *_server_observers(plan))
        except optional.SecureRoundError as error:
            failed += [{**line, "dropped": line.get("dropped", str(error))} for line in attempt.lines]
            continue
        _check_finite(server, start.round)
        for observer in plan.observers:
            if isinstance(observer, FactorObserver):
                observer.see_factors(fold.factors)
        for line in failed:
            line.setdefault("dropped", "its round was repeated, because too few clients responded")
        lines = failed + attempt.lines
        if not plan.traffic:
            lines = [{**line, "bytes_up": 0} for line in lines]
        return TrainedRound(server, attempt.memory, lines, attempt.examples, time.perf_counter() - started)
    raise _under_quorum(plan.faults, start.round, failed, plan.folding.may_record_clients())


@dataclass
class RoundAttempt:
    """One attempt at a round: what its clients returned, folded in as it arrives, and their records."""

    job: ServerJob
    plan: Plan
    start: Start
    number: int
    expected: Expected
    on_client: Callable[[dict[str, Any]], None]
    fold: RoundFold
    lines: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[int, PackedTree] = field(default_factory=dict)
    examples: int = 0

    def train(self, runner: Runner, cohort: list[int]) -> None:
        """Train the clients of a cohort that are not absent by a simulated fault."""
        job, plan, start = self.job, self.plan, self.start
        absent = plan.faults.absent(cohort, job, start.round, self.number)
        present = [client for client in cohort if client not in absent]
        self.lines += [self._line(client, reason) for client, reason in absent.items()]
        received = broadcast(job.algorithm, start.server)
        for observer in plan.observers:
            observer.begin()
        common = job.common(start.server.weights)
        start.memories.expect([*present, *_next_cohort(job, plan, start)])
        # A private cohort may be empty: noise alone then moves the model.
        recall = Recall(job, plan, start)
        for some in runner.train(start.round, common, received, present, recall) if present else ():
            if isinstance(some, Absent):
                self._record([self._line(client, some.reason) for client in some.clients])
            elif isinstance(some, Summed):
                self._take_sum(some)
            else:
                self._take(some)
        mark_restarts(self.lines, start.memories.losses())

    def _take(self, some: Result | Results) -> None:
        """Fold in the valid uploads of one client or of a stack."""
        job, uploads = self.job, some.uploads
        form = self.expected.holding(job.classes_of(some.clients[0]))
        reasons = rejection_reasons(uploads, form, possible_sizes(job, some.clients))
        accepted: Sequence[int] = range(len(uploads))
        if any(reasons):
            accepted = [index for index, reason in enumerate(reasons) if reason is None]
            self.fold.add_rejected([c for c, reason in zip(some.clients, reasons, strict=True) if reason is not None])
        lines = self._upload_lines(some, reasons)
        if isinstance(some, Result) and some.restarted:
            lines[0]["restarted"] = some.restarted
        for index in accepted if self.plan.observers else ():
            for observer in self.plan.observers:
                lines[index] |= observer.upload(some.clients[index], uploads[index], self.start.server)
        self._record(lines)
        if accepted:
            senders = list(map(some.clients.__getitem__, accepted))
            self.fold.add_stack(job.add_classes(senders, uploads.select(accepted)), senders)
        self.memory |= _pack(self.start.memories, some, accepted)
        self.examples += sum(map(uploads.examples.__getitem__, accepted)) * job.local.epochs

    def _take_sum(self, some: Summed) -> None:
        """Fold in a sum over clients, of which nothing else is known one by one."""
        self.fold.add_sum(some.total, len(some.clients), some.asked)
        self.memory |= {client: self.start.memories.pack(state) for client, state in some.memories.items()}
        lines = [self._line(client, None, {"bytes_up": some.bytes_up[client]}) for client in some.clients]
        mark_restarts(lines, some.restarted)
        self._record(lines)
        self.examples += sum(line["examples"] for line in lines) * self.job.local.epochs

    def _upload_lines(self, some: Result | Results, reasons: Sequence[str | None]) -> list[dict[str, Any]]:
        """Return the records of clients that sent an upload, filled by columns: a stack has many clients."""
        job, uploads, number = self.job, some.uploads, self.start.round + 1
        lines: list[dict[str, Any]] = [
            {"round": number, "client": client, "examples": job.clients.size(client), "steps": steps}
            for client, steps in zip(some.clients, uploads.steps, strict=True)
        ]
        sent = {name: values for name, values in uploads.metrics.items() if is_figure(name)}  # a rejected one's differ
        for name, values in (*sent.items(), ("bytes_up", repeat(job.bytes_up(uploads)))):
            for line, value in zip(lines, values, strict=False):  # repetitions have no end
                line[name] = value
        for line in lines if self.number else ():
            line["attempt"] = self.number + 1
        for line, reason in zip(lines, reasons, strict=True) if any(reasons) else ():
            if reason is not None:
                line["dropped"] = reason
        return lines

    def _line(self, client: int, dropped: str | None, metrics: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the record of a client."""
        size = self.job.clients.size(client)
        line = {"round": self.start.round + 1, "client": client, "examples": size, **(metrics or {})}
        if self.number:
            line["attempt"] = self.number + 1
        if dropped is not None:
            line["dropped"] = dropped
        return line

    def _record(self, lines: list[dict[str, Any]]) -> None:
        self.lines += lines
        for line in lines:
            self.on_client(line)


def _server_observers(plan: Plan) -> tuple[Callable[[Server, Server], None], ...]:
    """Return the function that shows the server rules to all observers, if there are any."""

    def observe(combined: Server, server: Server) -> None:
        for observer in plan.observers:
            observer.server_step(combined, server)

    return (observe,) if plan.observers else ()


def _next_cohort(job: ServerJob, plan: Plan, start: Start) -> list[int]:
    """Return the next cohort if clients have states, which are read while this cohort trains."""
    if not start.memories or start.round + 1 >= plan.rounds:
        return []
    return plan.cohort.sample(job.clients, job.seed, start.round + 1, 0)


def mark_restarts(lines: list[dict[str, Any]], losses: Mapping[int, str]) -> None:
    """Record why clients with a lost state restarted from the global model."""
    for line in lines if losses else ():
        if line["client"] in losses:
            line["restarted"] = losses[line["client"]]


def _pack(memories: ClientStates, some: Result | Results, accepted: Sequence[int]) -> dict[int, PackedTree]:
    """Return the new states of the accepted clients, packed; no state is left out."""
    states = some.memories.select(accepted)
    if not states.values or not accepted:
        return {}
    return dict(zip((some.clients[i] for i in accepted), memories.pack_stack(states.values, len(states)), strict=True))


def _metrics(job: ServerJob, start: Start, outcome: EvaluationOutcome, lines: list[dict[str, Any]]) -> dict[str, Any]:
    accepted = [line for line in lines if "dropped" not in line]
    received = broadcast(job.algorithm, start.server)
    down = job.bytes_down(start.server.weights, received, [line["client"] for line in lines])
    restarted = sum(["restarted" in line for line in lines])
    return {
        "round": start.round + 1,
        **outcome.metrics,
        "train_loss": _mean_loss(accepted),
        "clients": len(accepted),
        "dropped": len(lines) - len(accepted),
        **({"restarted": restarted} if restarted else {}),
        "bytes_up": sum([line["bytes_up"] for line in lines if "bytes_up" in line]),
        "bytes_down": down,
    }


def _mean_loss(accepted: list[dict[str, Any]]) -> float | None:
    """Return the mean training loss of the clients that reported one; a secure sum has none."""
    known = [line for line in accepted if "train_loss" in line]
    examples = sum([line["examples"] for line in known])
    return sum([line["train_loss"] * line["examples"] for line in known]) / examples if examples else None


def _check_finite(server: Server, round: int) -> None:
    broken = [name for name, value in server.weights.params.items() if not torch.isfinite(value).all()]
    if broken:
        raise RunFailed(
            f"the run diverged in round {round + 1}: the combined parameter '{broken[0]}' is not finite, although all "
            "updates of the clients were; lower the server's learning rate or local.lr",
            ending=f"diverged in round {round + 1}",
        )


def _under_quorum(faults: FaultRule, round: int, lines: list[dict[str, Any]], names_clients: bool) -> RunFailed:
    """Say why a round failed; a private run must not say which clients were in it."""
    lost = [line for line in lines if "dropped" in line]
    if lost and not names_clients:
        return RunFailed(
            f"round {round + 1} did not reach its quorum of {faults.quorum:.0%} in {faults.retries + 1} attempts; "
            "raise cohort.fraction, or lower faults.quorum or faults.dropout",
            ending=f"lost its quorum in round {round + 1}",
        )
    diverged = [line for line in lost if "finite" in line["dropped"]]
    if not lost:
        return RunFailed(
            f"round {round + 1} sampled too few clients in {faults.retries + 1} attempts; raise cohort.fraction",
            ending=f"lost its quorum in round {round + 1}",
        )
    first = (diverged or lost)[0]
    cause = f"client {first['client']}: {first['dropped']}"
    if diverged:
        return RunFailed(
            f"the run diverged in round {round + 1}, {cause}; lower local.lr, or clip gradients (plus = ['clip'])",
            ending=f"diverged in round {round + 1}",
        )
    other = "raise faults.deadline" if "deadline" in first["dropped"] else "faults.dropout"
    return RunFailed(
        f"round {round + 1} did not reach its quorum of {faults.quorum:.0%} in {faults.retries + 1} attempts "
        f"({len(lost)} clients lost, {cause}); lower faults.quorum or {other}",
        ending=f"lost its quorum in round {round + 1}",
    )
