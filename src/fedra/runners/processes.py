"""A persistent pool of worker processes, one thread each: bit-equal to sequential with one thread.

Data and the global model lie in shared memory and are never pickled per task. Any worker may run any client. A
worker that dies is replaced and its task runs again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from fedra.core.evaluate import Counts
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.tree import Params, Tree, size_in_bytes
from fedra.errors import RunError
from fedra.runners.base import Result, Runner, threads
from fedra.runners.handover import Line, common_memory
from fedra.runners.tasks import PATIENCE, Task, Train, answer, evaluations

ROOM = 2
"""Models that a message may hold beside the pipe: a change and a memory."""


@dataclass
class Worker:
    """One process and our end of the line to it; `task` is what it is doing."""

    process: Any
    line: Line
    task: Any = None

    @property
    def pipe(self) -> Connection:
        return self.line.pipe


class ProcessRunner:
    """See `processes`."""

    def __init__(self, job: Job, workers: int, threads_each: int, start_method: str) -> None:
        self._job = job
        self._threads = threads_each
        self._context: Any = multiprocessing.get_context(start_method)
        if start_method != "fork":  # a fork sees our pages as they are; a spawned worker is handed shared ones
            for tensor in job.tensors():
                tensor.share_memory_()  # type: ignore[no-untyped-call]
        start = job.initial()
        # Contiguous copies in shared memory: workers arrange them as every runner does.
        self._weights = Weights(_shared(start.params), _shared(start.buffers))
        self._workers: list[Worker] = []
        for _ in range(workers):
            self._workers.append(self._hire())

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result]:
        self._publish(origin)

        def message(client: int) -> Train:
            return Train(round, client, received, memory(client))

        for client, (new_memory, upload) in self._map(cohort, message):
            yield Result(client, new_memory, upload)

    def evaluate(self, weights: Weights) -> Counts:
        assert self._job.test is not None, "the job has no test set"
        self._publish(weights)
        answers = self._map(evaluations(len(self._job.test)), lambda group: group)
        return Counts.total(counts for _, group in answers for counts in group)

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
        self._workers = []

    def _publish(self, weights: Weights) -> None:
        """Put the model where the workers read it; they are idle between calls."""
        for shared, new in ((self._weights.params, weights.params), (self._weights.buffers, weights.buffers)):
            for name, value in new.items():
                shared[name].copy_(value)

    def _hire(self) -> Worker:
        ours, theirs = self._context.Pipe()
        # A fork inherits our ends of all pipes: while it holds them, no worker sees its own pipe close.
        forked = self._context.get_start_method() == "fork"
        inherited = [ours, *(worker.pipe for worker in self._workers)] if forked else []
        memory = common_memory(ROOM * size_in_bytes(self._weights._asdict())) if forked else np.empty(0, np.uint8)
        arguments = (Line(theirs, memory), inherited, self._job, self._weights, self._threads)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        with warnings.catch_warnings():
            # A fork of a process with threads is safe here: a worker runs its own single thread.
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            process.start()
        theirs.close()
        return Worker(process, Line(ours, memory))

    def _map(self, tasks: Sequence[Any], message: Callable[[Any], Task]) -> Iterator[tuple[Any, Any]]:
        """Answers in the order of `tasks`, which are begun in that order too: little has to wait its turn."""
        waiting = deque(tasks)
        answers: dict[Any, Any] = {}
        losses: dict[Any, int] = {}
        try:
            for task in tasks:
                while task not in answers:
                    self._hand_out(waiting, message)
                    for worker in self._ready():
                        self._collect(worker, answers, waiting, losses)
                self._hand_out(waiting, message)
                yield task, answers.pop(task)
        except BaseException:
            self._drain()
            raise

    def _hand_out(self, waiting: deque[Any], message: Callable[[Any], Task]) -> None:
        for worker in self._workers:
            if worker.task is None and waiting:
                worker.task = waiting.popleft()
                try:
                    worker.line.send(message(worker.task))
                except (BrokenPipeError, ConnectionResetError):
                    continue  # it died while idle; reading its pipe will tell, and hire another

    def _ready(self) -> list[Worker]:
        by_pipe = {worker.pipe: worker for worker in self._workers if worker.task is not None}
        return [by_pipe[pipe] for pipe in wait(list(by_pipe)) if isinstance(pipe, Connection)]

    def _collect(self, worker: Worker, answers: dict[Any, Any], waiting: deque[Any], losses: dict[Any, int]) -> None:
        task = worker.task
        try:
            outcome = worker.line.receive()
        except (EOFError, ConnectionResetError):
            self._replace(worker)
            losses[task] = losses.get(task, 0) + 1
            if losses[task] >= PATIENCE:
                raise RunError(
                    f"{PATIENCE} worker processes died while running client or task {task}: the machine may be "
                    "short of memory; use fewer workers or runner.name = 'sequential' to see the cause"
                ) from None
            waiting.appendleft(task)
            return
        worker.task = None
        if isinstance(outcome, BaseException):
            raise outcome
        answers[task] = outcome

    def _replace(self, worker: Worker) -> None:
        worker.pipe.close()
        worker.process.join()
        self._workers[self._workers.index(worker)] = self._hire()

    def _drain(self) -> None:
        """Nobody waits for what is still under way: replace busy workers, so that no late answer is misread."""
        for worker in [w for w in self._workers if w.task is not None]:
            worker.process.kill()
            self._replace(worker)


def _work(line: Line, inherited: list[Connection], job: Job, weights: Weights, thread_count: int) -> None:
    """A worker's life: take a task, do it, answer; end when the pipe closes."""
    for end in inherited:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has the parent's handler
    with threads(thread_count):
        while True:
            try:
                task = line.receive()
            except (EOFError, ConnectionResetError):
                return
            try:
                line.send(answer(task, job, weights))
            except (BrokenPipeError, ConnectionResetError):
                return


def _shared(values: Params) -> Params:
    return {name: value.contiguous().cpu().share_memory_() for name, value in values.items()}  # type: ignore[no-untyped-call]


def default_workers() -> int:
    """One worker per core this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_start_method() -> Literal["fork", "spawn"]:
    """Fork where it is quick and safe: on Linux without a GPU, for whose sake torch keeps threads that no fork has."""
    return "fork" if sys.platform == "linux" and not torch.cuda.device_count() else "spawn"


def processes(
    job: Job,
    *,
    workers: Annotated[int, Field(ge=1)] | None = None,
    threads: Annotated[int, Field(ge=1)] = 1,
    start_method: Literal["fork", "spawn", "forkserver"] | None = None,
) -> Runner:
    """A pool of worker processes, by default one per core with one thread each."""
    return ProcessRunner(job, workers or default_workers(), threads, start_method or default_start_method())
