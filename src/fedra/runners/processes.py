"""A persistent pool of worker processes, one thread each: bit-identical to sequential with one thread.

Data and the global model are in shared memory and never pickled per task. Any worker can run any client. A worker that
dies is replaced, and its task runs again. A pending evaluation is done by workers that have no client left in a round.
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
from torch import Tensor

from fedra.core.evaluate import Counts
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.tree import Params, Tree, size_in_bytes
from fedra.errors import ConfigError, RunError
from fedra.runners import RUNNERS
from fedra.runners.base import MOST_WORKERS, Result, Runner, threads
from fedra.runners.handover import Channel, shared_memory
from fedra.runners.pages import keep_freed_memory
from fedra.runners.tasks import ATTEMPTS, Evaluate, Task, Train, evaluation_tasks, run_task
from fedra.runners.worker_death import GUARD, NO_GUARD, describe_death, end_reimported_script

ROOM = 2
"""Shared memory per message in sizes of the model: one for the change, one for client state."""


@dataclass(frozen=True)
class SharedModels:
    """Weights in shared memory that the workers read: for training and for evaluation."""

    trained: Weights
    evaluated: Weights

    def of(self, task: Task) -> Weights:
        """The weights for a task."""
        return self.trained if isinstance(task, Train) else self.evaluated


class PooledEvaluation:
    """An evaluation split into tasks for the workers."""

    def __init__(self, pool: ProcessRunner, tasks: list[Evaluate]) -> None:
        self._pool, self._tasks = pool, tasks
        self.waiting = deque(tasks)
        self.results: dict[Evaluate, list[Counts]] = {}

    @property
    def ready(self) -> bool:
        return len(self.results) == len(self._tasks)

    def counts(self) -> Counts:
        self._pool.finish(self)
        return Counts.total(counts for task in self._tasks for counts in self.results[task])


@dataclass
class Worker:
    """A worker process and our end of the channel; `task` is its current task, `next` the one it already received."""

    process: Any
    channel: Channel
    task: Any = None
    next: Any = None

    @property
    def pipe(self) -> Connection:
        return self.channel.pipe


class ProcessRunner:
    """See `processes`."""

    def __init__(self, job: Job, workers: int, threads_each: int, start_method: str) -> None:
        end_reimported_script()
        self._job = job
        self._threads = threads_each
        self._context: Any = multiprocessing.get_context(start_method)
        if start_method != "fork":  # a fork inherits our memory; other workers need shared tensors
            for tensor in job.tensors():
                _move_to_shared_memory(tensor)
        start = job.initial()
        # Contiguous copies in shared memory; workers convert them to the model's memory format.
        share = _share_with_forks if start_method == "fork" else _share
        self._models = SharedModels(*(Weights(share(start.params), share(start.buffers)) for _ in range(2)))
        self._evaluation: PooledEvaluation | None = None
        self._short = True  # whether this round's messages are short enough to be sent ahead
        self._deaths: dict[Any, int] = {}
        self._workers: list[Worker] = []
        for _ in range(workers):
            self._workers.append(self._start_worker())

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result]:
        _publish(origin, self._models.trained)
        self._short = True

        def message(client: int) -> Train:
            return Train(round, client, received, memory(client))

        for client, (new_memory, upload) in self._map(cohort, message):
            yield Result(client, new_memory, upload)

    def evaluate(self, weights: Weights) -> Counts:
        return self.start_evaluation(weights).counts()

    def start_evaluation(self, weights: Weights) -> PooledEvaluation:
        assert self._job.evaluated_examples is not None, "the job has no test set"
        if self._evaluation is not None:
            self.finish(self._evaluation)
        _publish(weights, self._models.evaluated)
        self._evaluation = PooledEvaluation(self, evaluation_tasks(len(self._job.evaluated_examples)))
        return self._evaluation

    def finish(self, evaluation: PooledEvaluation) -> None:
        """Finish an evaluation with all workers."""
        try:
            while not evaluation.ready:
                self._assign(deque(), lambda task: task)
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

    def _start_worker(self) -> Worker:
        ours, theirs = self._context.Pipe()
        # A fork inherits our ends of all pipes and must close them, or no worker would see its own pipe close.
        forked = self._context.get_start_method() == "fork"
        inherited = [ours, *(worker.pipe for worker in self._workers)] if forked else []
        room = ROOM * size_in_bytes(self._models.trained._asdict())
        memory = shared_memory(2 * room) if forked else np.empty(0, np.uint8)
        arguments = (Channel(theirs, memory), inherited, self._job, self._models, self._threads)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        with warnings.catch_warnings():
            # Forking a process with threads is safe here: the worker does not use them.
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            process.start()
        theirs.close()
        return Worker(process, Channel(ours, memory))

    def _map(self, tasks: Sequence[Any], message: Callable[[Any], Task]) -> Iterator[tuple[Any, Any]]:
        """Run tasks and yield their answers in order; tasks also start in order, so few answers have to wait."""
        waiting = deque(tasks)
        answers: dict[Any, Any] = {}
        try:
            for task in tasks:
                while task not in answers:
                    self._assign(waiting, message)
                    for worker in self._ready():
                        self._collect(worker, answers, waiting)
                self._assign(waiting, message)
                yield task, answers.pop(task)
        except BaseException:
            self._drain()
            raise

    def _assign(self, waiting: deque[Any], message: Callable[[Any], Task]) -> None:
        """Give every idle worker a task or, if none is waiting, a part of the evaluation."""
        for worker in self._workers:
            if worker.task is not None:
                continue
            if waiting:
                worker.task = waiting.popleft()
                self._send(worker, message(worker.task))
            elif self._evaluation is not None and self._evaluation.waiting:
                worker.task = self._evaluation.waiting.popleft()
                self._send(worker, worker.task)
        self._assign_ahead(waiting, message)

    def _assign_ahead(self, waiting: deque[Any], message: Callable[[Any], Task]) -> None:
        """Send busy workers their next client, so they need not wait while this process handles an answer.

        Only messages that fit into a pipe are sent ahead. The last clients of a round are not, so they go to the first
        idle workers.
        """
        for worker in self._workers:
            if len(waiting) <= len(self._workers) or not self._short:
                return
            if worker.next is None:
                try:
                    self._short = worker.channel.send_if_short(message(waiting[0]))
                except (BrokenPipeError, ConnectionResetError):
                    continue  # the worker died; `_collect` replaces it
                worker.next = waiting.popleft() if self._short else None

    def _send(self, worker: Worker, task: Task) -> None:
        try:
            worker.channel.send(task)
        except (BrokenPipeError, ConnectionResetError):
            return  # the worker died while idle; `_collect` replaces it

    def _ready(self) -> list[Worker]:
        by_pipe = {worker.pipe: worker for worker in self._workers if worker.task is not None}
        return [by_pipe[pipe] for pipe in wait(list(by_pipe)) if isinstance(pipe, Connection)]

    def _collect(self, worker: Worker, answers: dict[Any, Any], waiting: deque[Any]) -> None:
        task = worker.task
        evaluation = self._evaluation if isinstance(task, Evaluate) else None
        try:
            outcome = worker.channel.receive()
        except (EOFError, ConnectionResetError):
            code = self._replace(worker)
            if code == NO_GUARD:
                raise ConfigError(GUARD) from None
            self._deaths[task] = self._deaths.get(task, 0) + 1
            if self._deaths[task] >= ATTEMPTS:
                raise RunError(
                    f"{ATTEMPTS} worker processes died while running client or task {task}, the last one "
                    f"{describe_death(code)}"
                ) from None
            if worker.next is not None:
                waiting.appendleft(worker.next)
            (evaluation.waiting if evaluation else waiting).appendleft(task)
            return
        worker.task, worker.next = worker.next, None
        if isinstance(outcome, BaseException):
            raise outcome
        self._deaths.pop(task, None)
        (evaluation.results if evaluation else answers)[task] = outcome

    def _replace(self, worker: Worker) -> int | None:
        """Start another worker in the place of one that has died; returns the exit code of that one."""
        worker.pipe.close()
        worker.process.join()
        code: int | None = worker.process.exitcode
        self._workers[self._workers.index(worker)] = self._start_worker()
        return code

    def _drain(self) -> None:
        """Replace busy workers after an error, so no late answer is taken for another.

        Evaluation tasks go back to the queue, because the evaluation may still be finished.
        """
        for worker in [w for w in self._workers if w.task is not None]:
            if self._evaluation is not None and isinstance(worker.task, Evaluate):
                self._evaluation.waiting.appendleft(worker.task)
            worker.process.kill()
            self._replace(worker)


def _work(channel: Channel, inherited: list[Connection], job: Job, models: SharedModels, thread_count: int) -> None:
    """The main loop of a worker; it ends when the pipe closes."""
    for end in inherited:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork inherits the parent's handler
    keep_freed_memory()
    with threads(thread_count):
        while True:
            try:
                task = channel.receive()
            except (EOFError, ConnectionResetError):
                return
            try:
                channel.send(run_task(task, job, models.of(task)))
            except (BrokenPipeError, ConnectionResetError):
                return


def _publish(weights: Weights, shared: Weights) -> None:
    """Copy a model to shared memory; no worker may be reading that memory."""
    for target, source in ((shared.params, weights.params), (shared.buffers, weights.buffers)):
        for name, value in source.items():
            target[name].copy_(value)


def _share(values: Params) -> Params:
    """Return copies that a new process can open by name, in /dev/shm on Linux."""
    copies = {name: value.contiguous().cpu() for name, value in values.items()}
    for value in copies.values():
        _move_to_shared_memory(value)
    return copies


def _move_to_shared_memory(tensor: Tensor) -> None:
    try:
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        size = tensor.numel() * tensor.element_size() / 1e6
        raise RunError(
            f"shared memory must have room for the model and the data, got none for {size:.1f} MB "
            f"({str(error).partition(chr(10))[0][:200]}): enlarge /dev/shm (containers often have 64 MB), set "
            "start_method = 'fork', or use the runner 'sequential'"
        ) from None


def _share_with_forks(values: Params) -> Params:
    """Return copies in memory that forks share; it needs no /dev/shm, which is small in containers."""
    copies = {}
    for name, value in values.items():
        size = value.numel() * value.element_size()
        copy = torch.from_numpy(shared_memory(max(size, 1)))[:size].view(value.dtype).view(value.shape)
        copies[name] = copy.copy_(value)
    return copies


def default_workers() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_start_method() -> Literal["fork", "spawn"]:
    """Fork on Linux without a GPU, else spawn: with a GPU torch keeps threads that a fork would not have."""
    return "fork" if sys.platform == "linux" and not torch.cuda.device_count() else "spawn"


@RUNNERS.add("processes")
def processes(
    job: Job,
    *,
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None = None,
    threads: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 1,
    start_method: Literal["fork", "spawn", "forkserver"] | None = None,
) -> Runner:
    """A pool of worker processes, by default one per core with one thread each."""
    return ProcessRunner(job, workers or default_workers(), threads, start_method or default_start_method())
