"""A persistent pool of worker processes, one thread each: bit-equal to sequential with one thread.

Data and the global model lie in shared memory and are never pickled per task. Any worker may run any client. A
worker that dies is replaced and its task runs again.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from fedra.core.evaluate import Counts, count, portions
from fedra.core.job import Job, run_client
from fedra.core.model import Weights
from fedra.core.tree import Params, Tree
from fedra.errors import FedraError, RunError
from fedra.runners.base import Result, Runner, threads

PATIENCE = 3
"""How many workers a task may lose before the run gives up on it."""

PORTION_GROUP = 8
"""Evaluation batches per task: enough to make the message negligible."""


@dataclass
class Worker:
    """One process and our end of its pipe; `task` is what it is doing."""

    process: Any
    pipe: Connection
    task: Any = None


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

        def message(client: int) -> tuple[Any, ...]:
            return ("train", round, client, received, memory(client))

        for client, (new_memory, upload) in self._map(cohort, message):
            yield Result(client, new_memory, upload)

    def evaluate(self, weights: Weights) -> Counts:
        assert self._job.test is not None, "the job has no test set"
        self._publish(weights)
        batches = portions(len(self._job.test))
        groups = [tuple(batches[i : i + PORTION_GROUP]) for i in range(0, len(batches), PORTION_GROUP)]
        answers = self._map(groups, lambda group: ("evaluate", group))
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
        arguments = (theirs, inherited, self._job, self._weights, self._threads)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        with warnings.catch_warnings():
            # A fork of a process with threads is safe here: a worker runs its own single thread.
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            process.start()
        theirs.close()
        return Worker(process, ours)

    def _map(self, tasks: Sequence[Any], message: Callable[[Any], tuple[Any, ...]]) -> Iterator[tuple[Any, Any]]:
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

    def _hand_out(self, waiting: deque[Any], message: Callable[[Any], tuple[Any, ...]]) -> None:
        for worker in self._workers:
            if worker.task is None and waiting:
                worker.task = waiting.popleft()
                try:
                    _send(worker.pipe, message(worker.task))
                except (BrokenPipeError, ConnectionResetError):
                    continue  # it died while idle; reading its pipe will tell, and hire another

    def _ready(self) -> list[Worker]:
        by_pipe = {worker.pipe: worker for worker in self._workers if worker.task is not None}
        return [by_pipe[pipe] for pipe in wait(list(by_pipe)) if isinstance(pipe, Connection)]

    def _collect(self, worker: Worker, answers: dict[Any, Any], waiting: deque[Any], losses: dict[Any, int]) -> None:
        task = worker.task
        try:
            outcome = _receive(worker.pipe)
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


def _work(pipe: Connection, inherited: list[Connection], job: Job, weights: Weights, thread_count: int) -> None:
    """A worker's life: take a task, do it, answer; end when the pipe closes."""
    for end in inherited:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    with threads(thread_count):
        while True:
            try:
                task = _receive(pipe)
            except (EOFError, ConnectionResetError):
                return
            try:
                answer: Any = _do(task, job, weights)
            except Exception as error:
                answer = _portable(error)
            try:
                _send(pipe, answer)
            except (BrokenPipeError, ConnectionResetError):
                return


def _do(task: tuple[Any, ...], job: Job, weights: Weights) -> Any:
    if task[0] == "train":
        _, round, client, received, memory = task
        return run_client(job, round, client, weights, received, memory)
    arranged = Weights(job.model.arrange(weights.params), job.model.arrange(weights.buffers))
    assert job.test is not None
    return [count(job.model, arranged, job.test, job.classes, *portion) for portion in task[1]]


def _send(pipe: Connection, message: Any) -> None:
    """Tensors travel by value: torch's own pickling by file handle would tie a message to its sender's life."""
    pipe.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def _receive(pipe: Connection) -> Any:
    """What one of our own processes sent; nothing from outside ever comes this way."""
    return pickle.loads(pipe.recv_bytes())


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note, or a plain one that says the same if it cannot be pickled."""
    if not isinstance(error, FedraError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.dumps(error)
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", []):
            plain.add_note(note)
        return plain
    return error


def _shared(values: Params) -> Params:
    return {name: value.contiguous().cpu().share_memory_() for name, value in values.items()}  # type: ignore[no-untyped-call]


def default_workers() -> int:
    """One worker per core this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_start_method() -> Literal["fork", "spawn"]:
    """Fork where it is quick and safe: on Linux, and before CUDA is in use."""
    cuda_in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return "fork" if sys.platform == "linux" and not cuda_in_use else "spawn"


def processes(
    job: Job,
    *,
    workers: Annotated[int, Field(ge=1)] | None = None,
    threads: Annotated[int, Field(ge=1)] = 1,
    start_method: Literal["fork", "spawn", "forkserver"] | None = None,
) -> Runner:
    """A pool of worker processes, by default one per core with one thread each."""
    return ProcessRunner(job, workers or default_workers(), threads, start_method or default_start_method())
