"""What a run's rounds are given and what they leave: the plan, the state they move on, a report of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedra.core.evaluate import Counts, nobody
from fedra.core.job import Job
from fedra.core.round import init_server
from fedra.core.round_zero import round_zero
from fedra.core.view import Server, Upload
from fedra.experiment.cohort import CohortRule, FaultRule
from fedra.experiment.judge import Judge, classification
from fedra.experiment.memory import Memories, Packed


@dataclass
class State:
    """Where a run stands: rounds done, the server, and what clients remember."""

    round: int
    server: Server
    memory: Memories = field(default_factory=Memories)

    @classmethod
    def fresh(cls, job: Job, done: Callable[[int], None] = nobody, memory: Memories | None = None) -> State:
        """The state before the first round, after round zero; `done` is told how many examples that has looked at."""
        server = init_server(job.algorithm, round_zero(job, job.initial(), done))
        return cls(0, server) if memory is None else cls(0, server, memory)

    def advance(self, server: Server, memory: Mapping[int, Packed]) -> None:
        """A round is done."""
        self.round, self.server = self.round + 1, server
        self.memory.put(self.round, memory)


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
