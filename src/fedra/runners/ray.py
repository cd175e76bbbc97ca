"""Training clients on Ray workers, on this machine or a cluster.

Clients travel in groups. Where the model allows, a worker trains a group as a stack, with the bits of the stacked
runner for the same groups on one thread; elsewhere one client after another, with the bits of sequential. The job is
put into Ray's object store once, the model once per round; workers of a node share both. No data leave the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedra.core.evaluate import Counts
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.tree import Tree
from fedra.runners import RUNNERS
from fedra.runners.auto import choose_stack
from fedra.runners.base import MOST_WORKERS, Done, Evaluation, Result, Results, Runner
from fedra.runners.ray_cluster import RayCluster, count_workers
from fedra.runners.ray_pool import RayPool
from fedra.runners.ray_worker import TrainGroup
from fedra.runners.stacked import check_stackable
from fedra.runners.stacked_states import recall_groups
from fedra.runners.tasks import evaluation_tasks

SECONDS = 0.1
"""Time of a group that is trained client by client: long against a message, short against a round."""

SHARE = 2
"""Such a group has at most this fraction of the clients that are left for a worker, so all end together."""


class RayRunner:
    """See `on_ray`."""

    def __init__(
        self, job: Job, address: str | None, workers: int | None, threads: int, gpus: float, stack: int
    ) -> None:
        self._job, self._stack = job, stack
        self._seconds: float | None = None  # of a client, as measured
        self._cluster = RayCluster(address, (workers or 1) * threads)
        try:
            count = count_workers(self._cluster.nodes(), workers, threads, gpus)
            self._data = self._cluster.put(job)
            self._pool = RayPool(self._cluster, count, threads, gpus)
        except BaseException:
            self._cluster.close()
            raise

    def report_to(self, report: Callable[[str], None], log: Path | None) -> None:
        """Call `report` with a line when workers are lost or join, and keep what Ray says in the file `log`."""
        self._pool.report, self._cluster.log = report, log

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result | Results]:
        groups = self._groups(cohort)

        def task(clients: Sequence[int]) -> TrainGroup:
            return TrainGroup(round, clients, recall_groups(memory, clients), self._stack > 1)

        for clients, answer, seconds in self._pool.map(groups, task, self._common(origin, received)):
            if isinstance(answer, Results):
                yield answer
                continue
            self._seconds = seconds / len(clients)
            for client, outcome in zip(clients, answer, strict=True):
                yield Result(client, *outcome)

    def evaluate(self, weights: Weights) -> Counts:
        assert self._job.evaluated_examples is not None, "the job has no test set"
        tasks = iter(evaluation_tasks(len(self._job.evaluated_examples)))
        answers = self._pool.map(lambda workers: next(tasks, None), lambda task: task, self._common(weights, {}))
        return Counts.total(counts for _, group, _ in answers for counts in group)

    def start_evaluation(self, weights: Weights) -> Evaluation:
        return Done(self.evaluate(weights))

    def close(self) -> None:
        self._pool.close()
        self._cluster.close()

    def _common(self, weights: Weights, received: Tree) -> tuple[Any, ...]:
        """The arguments of all tasks: a reference to the job, not resolved with every task, and the model."""
        self._pool.check()  # Ray ends this process if it cannot store an object
        on_cpu = Weights(*({name: value.detach().cpu() for name, value in group.items()} for group in weights))
        return [self._data], self._cluster.put((on_cpu, received))

    def _groups(self, cohort: Sequence[int]) -> Callable[[int], Sequence[int] | None]:
        """Divide the cohort in order: into stacks of a fixed size, or into groups of about `SECONDS`."""
        begin = 0

        def take(workers: int) -> Sequence[int] | None:
            nonlocal begin
            size = self._stack if self._stack > 1 else self._group_size(len(cohort) - begin, workers)
            group = cohort[begin : begin + size]
            begin += size
            return group or None

        return take

    def _group_size(self, left: int, workers: int) -> int:
        if not self._seconds:
            return 1
        return max(1, min(int(SECONDS / self._seconds), math.ceil(left / (SHARE * workers))))


@RUNNERS.add("ray")
def on_ray(
    job: Job,
    *,
    address: str | None = None,
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None = None,
    threads: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 1,
    gpus: Annotated[float, Field(ge=0)] = 0.0,
    stack: Annotated[int, Field(ge=1)] | None = None,
) -> Runner:
    """Ray workers, by default one per CPU of the cluster with one thread each.

    Without an `address`, Ray is started on this machine, for its own processes alone, and shut down after the run; a
    cluster at an address, or one that the process has already joined, keeps running. `gpus` is each worker's share of a
    GPU, for device = "cuda". A worker trains `stack` clients at once as stacked parameters, with 1 one after another;
    by default 2.5 times the square root of the cohort, at most 256, where the model is small enough to gain by it. The
    clients of a lost worker go to the others, and a worker that returns is used again. Needs the extra 'ray', and on a
    cluster the same version of fedra on every node.
    """
    stack = choose_stack(job, len(job.clients)) if stack is None else stack
    if stack > 1:
        check_stackable(job)
    return RayRunner(job, address, workers, threads, gpus, stack)
