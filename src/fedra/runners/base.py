"""The interface of runners: train a cohort, and evaluate a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from fedra.core.evaluate import Counts
from fedra.core.model import Weights
from fedra.core.tree import Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Upload
from fedra.errors import RunError
from fedra.runners.stacked_states import StackedTrees

MOST_WORKERS = 4096
"""Largest number of workers, or of threads of one; torch and the system take no arbitrary numbers."""


class WorkersLost(RunError):
    """All workers are lost; the run can be resumed when there are others."""


class Result(NamedTuple):
    """The result of one client: its new state and its upload; `restarted` says why its earlier state was lost."""

    client: int
    memory: Tree
    upload: Upload
    restarted: str | None = None

    @property
    def clients(self) -> Sequence[int]:
        return (self.client,)

    @property
    def memories(self) -> StackedTrees:
        return StackedTrees.of(self.memory)

    @property
    def uploads(self) -> Uploads:
        return Uploads.of(self.upload)


@dataclass(frozen=True)
class Results:
    """The results of a stack of clients."""

    clients: Sequence[int]
    memories: StackedTrees
    uploads: Uploads


@dataclass(frozen=True)
class Absent:
    """Clients without a result, and why: their site is away, late, or sent what cannot be used."""

    clients: Sequence[int]
    reason: str


@dataclass(frozen=True)
class Summed:
    """Clients whose uploads came as one sum: nothing is known of a single one.

    `total` is the sum in the ring of the secure protocol, which has room for the `asked` clients; `memories` is what
    the server stores of each client.
    """

    clients: Sequence[int]
    total: np.ndarray
    memories: Mapping[int, Tree]
    restarted: Mapping[int, str]
    bytes_up: Mapping[int, int]
    asked: int


def iterate_results(results: Iterable[Result | Results | Absent | Summed]) -> Iterator[Result]:
    """The results client by client, without absent clients and sums."""
    for result in results:
        if isinstance(result, Absent | Summed):
            continue
        yield from map(Result, result.clients, result.memories, result.uploads)


class Evaluation(Protocol):
    """An evaluation that was started and may still be running."""

    @property
    def ready(self) -> bool:
        """Whether `counts` returns without waiting."""
        ...

    def counts(self) -> Counts:
        """Wait for the evaluation and return its counts."""
        ...


@dataclass(frozen=True)
class Done:
    """An evaluation that is already finished."""

    found: Counts
    ready: ClassVar[bool] = True

    def counts(self) -> Counts:
        return self.found


@runtime_checkable
class ReportsLosses(Protocol):
    """A runner that can say which of its workers are lost while it goes on with the others."""

    def report_to(self, report: Callable[[str], None], log: Path | None) -> None:
        """Say what is lost to `report`, and write what the workers' system says to the file `log`."""
        ...


class Runner(Protocol):
    """Trains clients and evaluates models for one job. Results arrive in the cohort's order, one client or stack at a
    time.
    """

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result | Results | Absent | Summed]:
        """Train every client of the cohort; `memory` returns a client's state."""
        ...

    def evaluate(self, weights: Weights) -> Counts:
        """Count correct predictions on the job's test set."""
        ...

    def start_evaluation(self, weights: Weights) -> Evaluation:
        """Start an evaluation that runs alongside the next training where workers are idle, or run it at once."""
        ...

    def close(self) -> None:
        """Release processes and memory."""
        ...


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set torch's number of threads inside the block; it affects the order of sums, and so rounding."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
