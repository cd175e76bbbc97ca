"""What every runner can do: train a cohort, and evaluate a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch

from fedra.core.evaluate import Counts
from fedra.core.model import Weights
from fedra.core.tree import Tree
from fedra.core.view import Upload


class Result(NamedTuple):
    """What a client leaves behind: its new memory and its upload."""

    client: int
    memory: Tree
    upload: Upload


class Runner(Protocol):
    """Trains clients and evaluates models for one job. Results come in the cohort's order, as they are ready."""

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result]:
        """Train every client of the cohort; `memory` gives what a client remembers."""
        ...

    def evaluate(self, weights: Weights) -> Counts:
        """Right answers on the job's test set."""
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
