"""What every runner can do: train a cohort, and evaluate a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch

from fedra.core.evaluate import Counts
from fedra.core.model import Weights
from fedra.core.tree import Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Upload


class Result(NamedTuple):
    """What a client leaves behind: its new memory and its upload."""

    client: int
    memory: Tree
    upload: Upload

    @property
    def clients(self) -> Sequence[int]:
        return (self.client,)

    @property
    def memories(self) -> Sequence[Tree]:
        return (self.memory,)

    @property
    def uploads(self) -> Uploads:
        return Uploads.of(self.upload)


@dataclass(frozen=True)
class Results:
    """What the clients of a stack leave behind, their uploads as one."""

    clients: Sequence[int]
    memories: Sequence[Tree]
    uploads: Uploads


def one_by_one(results: Iterable[Result | Results]) -> Iterator[Result]:
    """The results client by client."""
    for some in results:
        yield from map(Result, some.clients, some.memories, some.uploads)


class Evaluation(Protocol):
    """A test that was begun: perhaps done, perhaps still under way."""

    @property
    def ready(self) -> bool:
        """Whether nobody would have to wait."""
        ...

    def counts(self) -> Counts:
        """Right answers on the job's test set, once all are there."""
        ...


@dataclass(frozen=True)
class Done:
    """A test that was over as soon as it began."""

    found: Counts
    ready: ClassVar[bool] = True

    def counts(self) -> Counts:
        return self.found


class Runner(Protocol):
    """Trains clients and evaluates models for one job. Results come in the cohort's order, as they are ready, each
    of one client or of a stack.
    """

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result | Results]:
        """Train every client of the cohort; `memory` gives what a client remembers."""
        ...

    def evaluate(self, weights: Weights) -> Counts:
        """Right answers on the job's test set."""
        ...

    def begin_evaluation(self, weights: Weights) -> Evaluation:
        """The same beside the training that follows, where some of the runner would be idle; else at once."""
        ...

    def close(self) -> None:
        """Give back processes and memory."""
        ...


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run the block on that many threads: they change the order of sums, and so the bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
