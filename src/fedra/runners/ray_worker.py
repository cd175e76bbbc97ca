"""A worker in Ray: it fetches the job once and trains groups of clients, as stacks or one after another."""

from __future__ import annotations

import pickle
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import torch

from fedra.core.job import Job, run_client
from fedra.core.model import Weights
from fedra.core.tree import Tree
from fedra.core.view import Upload
from fedra.errors import RunError
from fedra.runners.base import Results
from fedra.runners.packing import Packed, pack, unpack
from fedra.runners.pages import keep_freed_memory
from fedra.runners.ray_cluster import import_ray
from fedra.runners.stacked import StackedRunner
from fedra.runners.stacked_states import StateGroup
from fedra.runners.tasks import Evaluate, make_picklable, run_task


@dataclass(frozen=True)
class TrainGroup:
    """Train several clients from the states of those that have one.

    The answer to a stack is `Results`, to others a list of new states and uploads.
    """

    round: int
    clients: Sequence[int]
    states: Sequence[StateGroup]
    stack: bool


class Place(NamedTuple):
    """Where a worker runs, and with which versions."""

    node: str
    host: str
    versions: str

    def __str__(self) -> str:
        return f"node {self.host} ({self.node[:8]})"


class GroupAnswer(NamedTuple):
    """The answer to a task, packed, and the seconds it took; `error` is the task's own error."""

    packed: Packed | None
    seconds: float = 0.0
    error: Exception | None = None


class RayWorker:
    """The class of Ray's actors."""

    def __init__(self, threads: int, path: list[str]) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        sys.path += [folder for folder in path if folder not in sys.path]  # for the user's own modules
        self._threads = threads
        self._job: Job | None = None
        self._stacks: StackedRunner | None = None

    def place(self) -> Place:
        """Say where this worker is."""
        return Place(import_ray().get_runtime_context().get_node_id(), socket.gethostname(), versions())

    def do(self, task: Packed, job: list[Any], model: Packed) -> GroupAnswer:
        """Run a task; `job` holds a reference to the job, `model` the round's weights and broadcast."""
        try:
            self._job = self._job or unpack(import_ray().get(job[0]))
        except ImportError as error:
            reason = RunError(f"a Ray worker cannot load the job ({error}): install what it needs on every node")
            return GroupAnswer(None, error=reason)
        started = time.perf_counter()
        outcome = self._run(unpack(task), *unpack(model))
        seconds = time.perf_counter() - started
        if isinstance(outcome, Exception):
            return GroupAnswer(None, seconds, outcome)
        return GroupAnswer(pack(outcome, pickle.Pickler), seconds)

    def _run(self, task: TrainGroup | Evaluate, weights: Weights, received: Tree) -> Any:
        assert self._job is not None
        if isinstance(task, Evaluate):
            return run_task(task, self._job, weights)
        try:
            return self._train_stack(task, weights, received) if task.stack else self._train(task, weights, received)
        except Exception as error:
            return make_picklable(error)

    def _train(self, task: TrainGroup, weights: Weights, received: Tree) -> list[tuple[Tree, Upload]]:
        assert self._job is not None
        stored = {index: state for group in task.states for index, state in zip(*group, strict=True)}
        return [
            run_client(self._job, task.round, client, weights, received, stored.get(index, {}))
            for index, client in enumerate(task.clients)
        ]

    def _train_stack(self, task: TrainGroup, weights: Weights, received: Tree) -> Results:
        assert self._job is not None
        self._stacks = self._stacks or StackedRunner(self._job, chunk=None, threads=self._threads)
        return self._stacks.train_chunk(task.round, weights, received, task.clients, task.states)


def versions() -> str:
    """The versions that results depend on, and that all workers must share."""
    return f"Python {'.'.join(map(str, sys.version_info[:2]))}, fedra {version('fedra')}, torch {torch.__version__}"
