"""The rounds of a run: sample, train, refuse what is broken, fold, test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from fedra.callbacks.callback import RoundReport
from fedra.core.job import Job
from fedra.core.round import Fold, broadcast
from fedra.core.tree import Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Server
from fedra.errors import RunFailed
from fedra.experiment.cohort import Expected, FaultRule, refusals
from fedra.experiment.evaluators.evaluator import Trial, Verdict
from fedra.experiment.plan import Plan
from fedra.runners.base import Runner
from fedra.storage.client_state import Memories, PackedTree
from fedra.storage.state import State


@dataclass(frozen=True)
class Start:
    """What a round begins with; `ahead` is what clients remember of the round before while its test goes on."""

    round: int
    server: Server
    memories: Memories
    ahead: Mapping[int, PackedTree] = field(default_factory=dict)

    def memory(self, client: int) -> Tree:
        """What the client remembers."""
        return self.ahead[client].tree() if client in self.ahead else self.memories.get(client)


@dataclass(frozen=True)
class TrainedRound:
    """What a round's training left behind."""

    server: Server
    memory: dict[int, PackedTree]
    lines: list[dict[str, Any]]
    examples: int
    seconds: float


@dataclass(frozen=True)
class Tested:
    """A trained round whose test is over or still goes on."""

    start: Start
    trained: TrainedRound
    trial: Trial

    def report(self, job: Job, plan: Plan) -> RoundReport:
        """The finished round, once its test is over."""
        waited = time.perf_counter()
        verdict = self.trial.verdict()
        metrics = _metrics(job, self.start, verdict, self.trained.lines)
        metrics["bytes_down"] *= plan.traffic
        for observer in plan.observers:
            metrics |= observer.round(self.trained.server, verdict.counts)
        metrics["seconds"] = round(self.trained.seconds + time.perf_counter() - waited, 4)
        return RoundReport(metrics, self.trained.lines, self.trained.examples)


def ignore(_: object) -> None:
    """What is called where nothing listens."""


def rounds(
    job: Job,
    runner: Runner,
    plan: Plan,
    state: State,
    on_round: Callable[[int], None] = ignore,
    on_client: Callable[[dict[str, Any]], None] = ignore,
    held: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[RoundReport]:
    """Train from `state` to the plan's last round; `state` is moved on after each round.

    `on_round` receives the number of every round that begins, from 1 on; `on_client` the line of every client that is
    done. `held` is entered before `state` moves on and left when the next round is asked for: no signal should come
    between. A test that the runner can do alongside the next round's training goes on meanwhile: its round is yielded,
    and `state` moved on, when that training is over.
    """
    expected = Expected.of(job, state.server)

    def ended(tested: Tested) -> Iterator[RoundReport]:
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
            if before is not None:  # the round before is whole: it must not be lost with this one
                yield from ended(before)
            raise
        if before is not None:
            yield from ended(before)
            before = None
        if trained is not None:
            tested = Tested(start, trained, _begin_test(job, runner, plan, start.round, trained.server))
            # An observer measures a round by what it saw of it: no other may begin before it was asked.
            if tested.trial.ready or plan.observers:
                yield from ended(tested)
            else:
                before = tested


def _start(state: State, before: Tested | None) -> Start:
    """Where the next round begins: at the state or, if that still waits for a test, at what was trained since."""
    if before is None:
        return Start(state.round, state.server, state.memory)
    return Start(before.start.round + 1, before.trained.server, state.memory, before.trained.memory)


def _begin_test(job: Job, runner: Runner, plan: Plan, round: int, server: Server) -> Trial:
    due = (round + 1) % plan.evaluate_every == 0 or round + 1 == plan.rounds
    return plan.judge(job, runner, server.weights) if due else Verdict()


def _train(
    job: Job, runner: Runner, plan: Plan, start: Start, expected: Expected, on_client: Callable[[dict[str, Any]], None]
) -> TrainedRound:
    """One round, repeated with another cohort while too few clients answer. Nothing is kept of a failed try."""
    began = time.perf_counter()
    failed: list[dict[str, Any]] = []
    for attempt in range(plan.faults.retries + 1):
        cohort = plan.cohort.sample(job.clients, job.seed, start.round, attempt)
        absent = plan.faults.absent(cohort, job, start.round, attempt)
        present = [client for client in cohort if client not in absent]
        lines = [_line(job, start.round, client, attempt, dropped=reason) for client, reason in absent.items()]
        fold, examples = Fold(job.algorithm), 0
        memory: dict[int, PackedTree] = {}
        received = broadcast(job.algorithm, start.server)
        for observer in plan.observers:
            observer.begin()
        common = job.common(start.server.weights)
        start.memories.expect([*present, *_coming(job, plan, start)])
        results = runner.train(start.round, common, received, present, partial(_remembered, job, start))
        for some in results:
            reasons = refusals(some.uploads, expected.holding(job.classes_of(some.clients[0])))
            taken = [place for place, reason in enumerate(reasons) if reason is None]
            told = _figures(some.uploads)
            for place, (client, reason) in enumerate(zip(some.clients, reasons, strict=True)):
                lines.append(_line(job, start.round, client, attempt, reason, told[place]))
                for observer in plan.observers if reason is None else ():
                    lines[-1] |= observer.upload(client, some.uploads[place], start.server)
                on_client(lines[-1])
            if taken:
                fold.add_stack(job.addressed([some.clients[place] for place in taken], some.uploads.picked(taken)))
            remembered = {some.clients[place]: some.memories[place] for place in taken if some.memories[place]}
            memory |= {client: start.memories.pack(one) for client, one in remembered.items()}
            examples += sum(some.uploads.examples[place] for place in taken) * job.local.epochs
        note_losses(lines, start.memories.losses())
        if plan.faults.enough(fold.uploads, len(cohort)):
            server = fold.finish(start.server, job.population)
            _check(server, start.round)
            for line in failed:
                line.setdefault("dropped", "its round was repeated, because too few clients answered")
            lines = failed + lines
            if not plan.traffic:
                lines = [{**line, "bytes_up": 0} for line in lines]
            return TrainedRound(server, memory, lines, examples, time.perf_counter() - began)
        failed += lines
    raise _under_quorum(plan.faults, start.round, failed)


def _coming(job: Job, plan: Plan, start: Start) -> list[int]:
    """The next round's cohort, where anybody remembers anything: it is read while this one trains."""
    if not start.memories or start.round + 1 >= plan.rounds:
        return []
    return plan.cohort.sample(job.clients, job.seed, start.round + 1, 0)


def note_losses(lines: list[dict[str, Any]], losses: Mapping[int, str]) -> None:
    """Say in the lines of clients whose memory was lost why they started again from the global model."""
    for line in lines if losses else ():
        if line["client"] in losses:
            line["restarted"] = losses[line["client"]]


def _remembered(job: Job, start: Start, client: int) -> Tree:
    return job.remembered(client, start.server.weights, start.memory(client))


def _line(
    job: Job, round: int, client: int, attempt: int, dropped: str | None, figures: dict[str, Any] | None = None
) -> dict[str, Any]:
    line = {"round": round + 1, "client": client, "examples": job.clients.size(client), **(figures or {})}
    if attempt:
        line["attempt"] = attempt + 1
    if dropped is not None:
        line["dropped"] = dropped
    return line


def _figures(uploads: Uploads) -> list[dict[str, Any]]:
    """What every upload adds to its client's line."""
    columns = {"steps": uploads.steps, **uploads.figures, "bytes_up": [uploads.bytes_each] * len(uploads)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _metrics(job: Job, start: Start, verdict: Verdict, lines: list[dict[str, Any]]) -> dict[str, Any]:
    taken = [line for line in lines if "dropped" not in line]
    examples = sum(line["examples"] for line in taken)
    received = broadcast(job.algorithm, start.server)
    down = job.bytes_down(start.server.weights, received, [line["client"] for line in lines])
    return {
        "round": start.round + 1,
        **verdict.figures,
        "train_loss": sum(line["train_loss"] * line["examples"] for line in taken) / examples,
        "clients": len(taken),
        "dropped": len(lines) - len(taken),
        **({"restarted": restarted} if (restarted := sum("restarted" in line for line in lines)) else {}),
        "bytes_up": sum(line["bytes_up"] for line in lines if "bytes_up" in line),
        "bytes_down": down,
    }


def _check(server: Server, round: int) -> None:
    broken = [name for name, value in server.weights.params.items() if not torch.isfinite(value).all()]
    if broken:
        raise RunFailed(
            f"the run diverged in round {round + 1}: the averaged parameter '{broken[0]}' is not finite although "
            "every client's update was; lower the server's learning rate or local.lr",
            ending=f"diverged in round {round + 1}",
        )


def _under_quorum(faults: FaultRule, round: int, lines: list[dict[str, Any]]) -> RunFailed:
    lost = [line for line in lines if "dropped" in line]
    diverged = [line for line in lost if "finite" in line["dropped"]]
    first = (diverged or lost)[0]
    cause = f"client {first['client']}: {first['dropped']}"
    if diverged:
        return RunFailed(
            f"the run diverged in round {round + 1}, {cause}; lower local.lr, or clip gradients (plus = ['clip'])",
            ending=f"diverged in round {round + 1}",
        )
    other = "raise faults.deadline" if "deadline" in first["dropped"] else "faults.dropout"
    return RunFailed(
        f"round {round + 1} did not reach its quorum of {faults.quorum:.0%} in {faults.retries + 1} tries "
        f"({len(lost)} clients lost, {cause}); lower faults.quorum or {other}",
        ending=f"lost its quorum in round {round + 1}",
    )
