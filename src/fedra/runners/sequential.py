"""One client after another in this process: the reference runner, and the one for debugging."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from pydantic import Field

from fedra.core.evaluate import Counts, evaluate
from fedra.core.job import Job, run_client
from fedra.core.model import Weights
from fedra.core.tree import Tree
from fedra.runners import RUNNERS
from fedra.runners.base import MOST_WORKERS, Done, Evaluation, Result, Runner, threads
from fedra.runners.pages import keep_freed_memory


class SequentialRunner:
    """See `sequential`."""

    def __init__(self, job: Job, threads: int) -> None:
        keep_freed_memory()
        self._job = job
        self._threads = threads

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result]:
        for client in cohort:
            with threads(self._threads):
                new_memory, upload = run_client(self._job, round, client, origin, received, memory(client))
            yield Result(client, new_memory, upload)

    def evaluate(self, weights: Weights) -> Counts:
        job, examples = self._job, self._job.evaluated_examples
        assert examples is not None, "the job has no test set"
        with threads(self._threads):
            return evaluate(job.model, weights, examples, job.classes, job.keep_scores)

    def start_evaluation(self, weights: Weights) -> Evaluation:
        return Done(self.evaluate(weights))

    def close(self) -> None:
        """Do nothing."""


@RUNNERS.add("sequential")
def sequential(job: Job, *, threads: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 1) -> Runner:
    """One client after another in this process, on a fixed number of threads."""
    return SequentialRunner(job, threads)
