"""The plan of a run's rounds, and observers of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedra.core.evaluate import Counts
from fedra.core.job import ServerJob
from fedra.core.root_update import train_root
from fedra.core.round import Fold
from fedra.core.tree import Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Population, Server, Upload
from fedra.experiment.cohort import CohortRule, Expected, FaultRule
from fedra.experiment.evaluators.evaluator import Evaluator, classification


class Observer(Protocol):
    """Measures more about a round; the metrics it returns are added to the record of the round or the client."""

    def begin(self) -> None:
        """Start an attempt at a round, discarding what was measured in a failed attempt."""
        ...

    def upload(self, client: int, upload: Upload, before: Server) -> dict[str, float]:
        """Measure an accepted upload."""
        ...

    def server_step(self, combined: Server, server: Server) -> None:
        """Measure what the server rules change: the server with all uploads combined, and after the rules."""
        ...

    def round(self, server: Server, counts: Counts | None) -> dict[str, Any]:
        """Measure the server after the round."""
        ...


@runtime_checkable
class FactorObserver(Protocol):
    """An observer of what a robust rule makes of each upload."""

    def see_factors(self, factors: Mapping[int, float]) -> None:
        """Measure the factors of a round's clients."""
        ...


class RoundFold(Protocol):
    """Folds the uploads of a round into the next server."""

    @property
    def uploads(self) -> int:
        """The number of uploads so far."""
        ...

    @property
    def factors(self) -> Mapping[int, float]:
        """By client, what a robust rule multiplied its update with, after `finish`; empty for other rules."""
        ...

    def add_stack(self, uploads: Uploads, clients: Sequence[int] = ()) -> None:
        """Fold in a stack of uploads; `clients` are the numbers of their clients."""
        ...

    def add_rejected(self, clients: Sequence[int]) -> None:
        """Take note of clients whose upload is invalid."""
        ...

    def add_sum(self, total: np.ndarray, clients: int, asked: int) -> None:
        """Fold in the secure sum over a number of clients, of `asked` ones."""
        ...

    def finish(
        self, server: Server, population: Population, observe: Callable[[Server, Server], None] | None = None
    ) -> Server:
        """Return the server after the round."""
        ...


class Folding(Protocol):
    """How the uploads of a round are combined, and what of the round may be recorded."""

    @property
    def least(self) -> int:
        """Fewest uploads of a round."""
        ...

    def admit(self, server: Server, cohort: Sequence[int]) -> list[int]:
        """Return the clients of a sampled cohort that may still take part."""
        ...

    def prepare(self, job: ServerJob, round: int, client: int, memory: Tree) -> Tree:
        """Return a client's state with what the round adds to it."""
        ...

    def fold(self, job: ServerJob, server: Server, round: int, attempt: int, expected: Expected) -> RoundFold:
        """Open the fold of a round."""
        ...

    def record(self, server: Server, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of a round as they are recorded."""
        ...

    def may_record_clients(self) -> bool:
        """Return whether records of single clients may be kept."""
        ...


class PlainFolding:
    """Folds uploads as they are, and records everything."""

    @property
    def least(self) -> int:
        return 1

    def admit(self, server: Server, cohort: Sequence[int]) -> list[int]:
        return list(cohort)

    def prepare(self, job: ServerJob, round: int, client: int, memory: Tree) -> Tree:
        return memory

    def fold(self, job: ServerJob, server: Server, round: int, attempt: int, expected: Expected) -> RoundFold:
        return Fold(job.algorithm, train_root(job, server, round))

    def record(self, server: Server, metrics: dict[str, Any]) -> dict[str, Any]:
        return metrics

    def may_record_clients(self) -> bool:
        return True


@dataclass(frozen=True)
class Plan:
    """The settings of a run's rounds."""

    rounds: int
    cohort: CohortRule = field(default_factory=CohortRule)
    faults: FaultRule = field(default_factory=FaultRule)
    evaluate_every: int = 1
    observers: tuple[Observer, ...] = ()
    traffic: bool = True  # whether traffic is counted, which centralized training does not have
    evaluator: Evaluator = classification
    folding: Folding = field(default_factory=PlainFolding)
