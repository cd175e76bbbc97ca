"""A persistent pool of worker processes, one thread each: bit-equal to sequential with one thread.

Data and the global model lie in shared memory and are never pickled per task. Any worker may run any client. A
worker that dies is replaced and its task runs again. A test that was begun goes on where no client waits: workers that
are done with a round's clients before the others take portions of it.
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
from fedra.runners.pages import keep_freed_memory
from fedra.runners.tasks import PATIENCE, Evaluate, Task, Train, answer, evaluations

ROOM = 2
"""Models that a message may hold beside the pipe: a change and a memory."""


@dataclass(frozen=True)
class Models:
    """Shared memory that the workers read: the model that clients begin with, and the one that is being tested."""

    trained: Weights
    tested: Weights

    def of(self, task: Task) -> Weights:
        """The model that a task is about."""
        return self.trained if isinstance(task, Train) else self.tested


class Portions:
    """A test shared out among the workers: what waits, and what was found."""

    def __init__(self, pool: ProcessRunner, tasks: list[Evaluate]) -> None:
        self._pool, self._tasks = pool, tasks
        self.waiting = deque(tasks)
        self.found: dict[Evaluate, list[Counts]] = {}

    @property
    def ready(self) -> bool:
        return len(self.found) == len(self._tasks)

    def counts(self) -> Counts:
        self._pool.finish(self)
        return Counts.total(counts for task in self._tasks for counts in self.found[task])


@dataclass
class Worker:
    """One process and our end of the line to it; `task` is what it is doing, `next` what it knows it will do then."""

    process: Any
    line: Line
    task: Any = None
    next: Any = None

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
        self._models = Models(*(Weights(_shared(start.params), _shared(start.buffers)) for _ in range(2)))
        self._test: Portions | None = None
        self._brief = True  # whether the round's messages are so short that they may be sent ahead
        self._losses: dict[Any, int] = {}
        self._workers: list[Worker] = []
        for _ in range(workers):
            self._workers.append(self._hire())

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result]:
        _publish(origin, self._models.trained)
        self._brief = True

        def message(client: int) -> Train:
            return Train(round, client, received, memory(client))

        for client, (new_memory, upload) in self._map(cohort, message):
            yield Result(client, new_memory, upload)

    def evaluate(self, weights: Weights) -> Counts:
        return self.begin_evaluation(weights).counts()

    def begin_evaluation(self, weights: Weights) -> Portions:
        assert self._job.judged is not None, "the job has no test set"
        if self._test is not None:
            self.finish(self._test)
        _publish(weights, self._models.tested)
        self._test = Portions(self, evaluations(len(self._job.judged)))
        return self._test

    def finish(self, test: Portions) -> None:
        """Let all workers do what is left of a test."""
        try:
            while not test.ready:
                self._hand_out(deque(), lambda task: task)
                for worker in self._ready():
                    self._collect(worker, {}, deque())
        except BaseException:
            self._drain()
            raise

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
        self._workers = []

    def _hire(self) -> Worker:
        ours, theirs = self._context.Pipe()
        # A fork inherits our ends of all pipes: while it holds them, no worker sees its own pipe close.
        forked = self._context.get_start_method() == "fork"
        inherited = [ours, *(worker.pipe for worker in self._workers)] if forked else []
        room = ROOM * size_in_bytes(self._models.trained._asdict())
        memory = common_memory(2 * room) if forked else np.empty(0, np.uint8)
        arguments = (Line(theirs, memory), inherited, self._job, self._models, self._threads)
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
        try:
            for task in tasks:
                while task not in answers:
                    self._hand_out(waiting, message)
                    for worker in self._ready():
                        self._collect(worker, answers, waiting)
                self._hand_out(waiting, message)
                yield task, answers.pop(task)
        except BaseException:
            self._drain()
            raise

    def _hand_out(self, waiting: deque[Any], message: Callable[[Any], Task]) -> None:
        """Give every idle worker a task or, where none waits, a portion of the test."""
        for worker in self._workers:
            if worker.task is not None:
                continue
            if waiting:
                worker.task = waiting.popleft()
                self._send(worker, message(worker.task))
            elif self._test is not None and self._test.waiting:
                worker.task = self._test.waiting.popleft()
                self._send(worker, worker.task)
        self._tell_ahead(waiting, message)

    def _tell_ahead(self, waiting: deque[Any], message: Callable[[Any], Task]) -> None:
        """Tell busy workers of their next clients: none has to wait for us in between, while we fold an answer.

        Only what a pipe holds is told ahead, and the round's last clients go to whoever is free first.
        """
        for worker in self._workers:
            if len(waiting) <= len(self._workers) or not self._brief:
                return
            if worker.next is None:
                try:
                    self._brief = worker.line.whisper(message(waiting[0]))
                except (BrokenPipeError, ConnectionResetError):
                    continue  # reading its pipe will tell
                worker.next = waiting.popleft() if self._brief else None

    def _send(self, worker: Worker, task: Task) -> None:
        try:
            worker.line.send(task)
        except (BrokenPipeError, ConnectionResetError):
            return  # it died while idle; reading its pipe will tell, and hire another

    def _ready(self) -> list[Worker]:
        by_pipe = {worker.pipe: worker for worker in self._workers if worker.task is not None}
        return [by_pipe[pipe] for pipe in wait(list(by_pipe)) if isinstance(pipe, Connection)]

    def _collect(self, worker: Worker, answers: dict[Any, Any], waiting: deque[Any]) -> None:
        task = worker.task
        tested = self._test if isinstance(task, Evaluate) else None
        try:
            outcome = worker.line.receive()
        except (EOFError, ConnectionResetError):
            self._replace(worker)
            self._losses[task] = self._losses.get(task, 0) + 1
            if self._losses[task] >= PATIENCE:
                raise RunError(
                    f"{PATIENCE} worker processes died while running client or task {task}: the machine may be "
                    "short of memory; use fewer workers, or the runner 'sequential' to see the cause"
                ) from None
            if worker.next is not None:
                waiting.appendleft(worker.next)
            (tested.waiting if tested else waiting).appendleft(task)
            return
        worker.task, worker.next = worker.next, None
        if isinstance(outcome, BaseException):
            raise outcome
        self._losses.pop(task, None)
        (tested.found if tested else answers)[task] = outcome

    def _replace(self, worker: Worker) -> None:
        worker.pipe.close()
        worker.process.join()
        self._workers[self._workers.index(worker)] = self._hire()

    def _drain(self) -> None:
        """Nobody waits for what is still under way: replace busy workers, so that no late answer is misread.

        Portions of the test go back to those that wait: somebody may still want its end.
        """
        for worker in [w for w in self._workers if w.task is not None]:
            if self._test is not None and isinstance(worker.task, Evaluate):
                self._test.waiting.appendleft(worker.task)
            worker.process.kill()
            self._replace(worker)


def _work(line: Line, inherited: list[Connection], job: Job, models: Models, thread_count: int) -> None:
    """A worker's life: take a task, do it, answer; end when the pipe closes."""
    for end in inherited:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has the parent's handler
    keep_freed_memory()
    with threads(thread_count):
        while True:
            try:
                task = line.receive()
            except (EOFError, ConnectionResetError):
                return
            try:
                line.send(answer(task, job, models.of(task)))
            except (BrokenPipeError, ConnectionResetError):
                return


def _publish(weights: Weights, shared: Weights) -> None:
    """Put a model where the workers read it; none of them reads that one meanwhile."""
    for places, new in ((shared.params, weights.params), (shared.buffers, weights.buffers)):
        for name, value in new.items():
            places[name].copy_(value)


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
