"""The rounds of a run: sample, train, refuse what is broken, fold, test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from fedra.core import tree
from fedra.core.evaluate import Counts
from fedra.core.job import Job
from fedra.core.round import Fold, broadcast, init_server
from fedra.core.tree import Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Server, Upload
from fedra.errors import RunFailed
from fedra.experiment.cohort import CohortRule, Expected, FaultRule, refusals
from fedra.experiment.judge import Judge, Verdict, classification
from fedra.runners.base import Runner


@dataclass
class State:
    """Where a run stands: rounds done, the server, and what clients remember. `changed` clients need saving."""

    round: int
    server: Server
    memory: dict[int, Tree] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)

    @classmethod
    def fresh(cls, job: Job) -> State:
        """The state before the first round."""
        return cls(0, init_server(job.algorithm, job.initial()))

    def advance(self, server: Server, memory: dict[int, Tree]) -> None:
        """A round is done."""
        self.round, self.server = self.round + 1, server
        self.memory.update(memory)
        self.changed.update(memory)


class Observer(Protocol):
    """Somebody who measures more about a round; figures it returns join the round's or the client's line."""

    def begin(self) -> None:
        """Forget what was seen of a try at a round that failed: another begins."""
        ...

    def upload(self, client: int, upload: Upload, before: Server) -> dict[str, float]:
        """Look at an accepted upload."""
        ...

    def round(self, server: Server, counts: Counts | None) -> dict[str, Any]:
        """Look at the server after the round."""
        ...


@dataclass(frozen=True)
class Plan:
    """How long and in what manner to train."""

    rounds: int
    cohort: CohortRule = field(default_factory=CohortRule)
    faults: FaultRule = field(default_factory=FaultRule)
    evaluate_every: int = 1
    observers: tuple[Observer, ...] = ()
    traffic: bool = True  # whether models and uploads travel, which they do not within one machine
    judge: Judge = classification


@dataclass(frozen=True)
class Report:
    """One finished round: a line for metrics.jsonl, lines for clients.jsonl, and the examples seen."""

    metrics: dict[str, Any]
    clients: list[dict[str, Any]]
    examples: int


def rounds(
    job: Job,
    runner: Runner,
    plan: Plan,
    state: State,
    on_client: Callable[[], None] = lambda: None,
    held: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[Report]:
    """Train from `state` to the plan's last round; `state` is moved on after each round.

    `held` is entered before that and left when the next round is asked for: no signal should come between.
    """
    expected = Expected.of(job, state.server)
    while state.round < plan.rounds:
        started = time.perf_counter()
        server, memory, lines, examples = _train(job, runner, plan, state, expected, on_client)
        if not plan.traffic:
            lines = [{**line, "bytes_up": 0} for line in lines]
        last = state.round + 1 == plan.rounds
        due = (state.round + 1) % plan.evaluate_every == 0 or last
        verdict = plan.judge(job, runner, server.weights) if due else Verdict()
        metrics = _metrics(job, state, server, verdict, lines)
        metrics["bytes_down"] *= plan.traffic
        for observer in plan.observers:
            metrics |= observer.round(server, verdict.counts)
        metrics["seconds"] = round(time.perf_counter() - started, 4)
        with held():
            state.advance(server, memory)
            yield Report(metrics, lines, examples)


def _train(
    job: Job, runner: Runner, plan: Plan, state: State, expected: Expected, on_client: Callable[[], None]
) -> tuple[Server, dict[int, Tree], list[dict[str, Any]], int]:
    """One round, repeated with another cohort while too few clients answer. Nothing is kept of a failed try."""
    failed: list[dict[str, Any]] = []
    for attempt in range(plan.faults.retries + 1):
        cohort = plan.cohort.sample(job.clients, job.seed, state.round, attempt)
        absent = plan.faults.absent(cohort, job, state.round, attempt)
        present = [client for client in cohort if client not in absent]
        lines = [_line(job, state.round, client, attempt, dropped=reason) for client, reason in absent.items()]
        fold, examples = Fold(job.algorithm), 0
        memory: dict[int, Tree] = {}
        received = broadcast(job.algorithm, state.server)
        for observer in plan.observers:
            observer.begin()
        common = job.algorithm.sharing.common(state.server.weights)
        results = runner.train(state.round, common, received, present, partial(_remembered, job, state))
        for some in results:
            reasons = refusals(some.uploads, expected.holding(job.classes_of(some.clients[0])))
            taken = [place for place, reason in enumerate(reasons) if reason is None]
            told = _figures(some.uploads)
            for place, (client, reason) in enumerate(zip(some.clients, reasons, strict=True)):
                on_client()
                lines.append(_line(job, state.round, client, attempt, reason, told[place]))
                for observer in plan.observers if reason is None else ():
                    lines[-1] |= observer.upload(client, some.uploads[place], state.server)
            if taken:
                fold.add_stack(job.addressed([some.clients[place] for place in taken], some.uploads.picked(taken)))
            memory |= {some.clients[place]: some.memories[place] for place in taken}
            examples += sum(some.uploads.examples[place] for place in taken) * job.local.schedule.epochs
        if plan.faults.enough(fold.uploads, len(cohort)):
            server = fold.finish(state.server, job.population)
            _check(server, state.round)
            for line in failed:
                line.setdefault("dropped", "its round was repeated, because too few clients answered")
            return server, {c: m for c, m in memory.items() if m}, failed + lines, examples
        failed += lines
    raise RunFailed(_under_quorum(plan.faults, state.round, failed))


def _remembered(job: Job, state: State, client: int) -> Tree:
    return job.remembered(client, state.server.weights, state.memory.get(client, {}))


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


def _metrics(job: Job, state: State, server: Server, verdict: Verdict, lines: list[dict[str, Any]]) -> dict[str, Any]:
    taken = [line for line in lines if "dropped" not in line]
    examples = sum(line["examples"] for line in taken)
    common, received = job.algorithm.sharing.common(state.server.weights), broadcast(job.algorithm, state.server)
    down = sum(tree.size_in_bytes(part) for part in (common.params, common.buffers, received)) * len(lines)
    if job.owners is not None:
        owned = {n: v for n, v in state.server.weights.params.items() if job.algorithm.sharing.is_owned(n)}
        down += tree.size_in_bytes(owned) // job.classes * sum(job.classes_of(line["client"]) for line in lines)
    return {
        "round": state.round + 1,
        **verdict.figures,
        "train_loss": sum(line["train_loss"] * line["examples"] for line in taken) / examples,
        "clients": len(taken),
        "dropped": len(lines) - len(taken),
        "bytes_up": sum(line["bytes_up"] for line in lines if "bytes_up" in line),
        "bytes_down": down,
    }


def _check(server: Server, round: int) -> None:
    broken = [name for name, value in server.weights.params.items() if not torch.isfinite(value).all()]
    if broken:
        raise RunFailed(
            f"the run diverged in round {round + 1}: the averaged parameter '{broken[0]}' is not finite although "
            "every client's update was; lower the server's learning rate or local.lr"
        )


def _under_quorum(faults: FaultRule, round: int, lines: list[dict[str, Any]]) -> str:
    lost = [line for line in lines if "dropped" in line]
    diverged = [line for line in lost if "finite" in line["dropped"]]
    first = (diverged or lost)[0]
    cause = f"client {first['client']}: {first['dropped']}"
    if diverged:
        return f"the run diverged in round {round + 1}, {cause}; lower local.lr, or clip gradients (plus = ['clip'])"
    other = "raise faults.deadline" if "deadline" in first["dropped"] else "faults.dropout"
    return (
        f"round {round + 1} did not reach its quorum of {faults.quorum:.0%} in {faults.retries + 1} tries "
        f"({len(lost)} clients lost, {cause}); lower faults.quorum or {other}"
    )
