"""Clients trained by Ray's workers, on this machine or on a cluster: bit-equal to sequential with one thread.

The job lies in Ray's object store once, a round's model once a round; workers of one node share both. Ray starts a
worker that died anew, and its task again. Everything travels inside the user's own cluster.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field

from fedra.core.evaluate import Counts
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.tree import Tree
from fedra.errors import ConfigError, RunError
from fedra.runners.base import Done, Evaluation, Result, Runner
from fedra.runners.packing import Packed, pack, unpack
from fedra.runners.pages import keep_freed_memory
from fedra.runners.processes import default_workers
from fedra.runners.tasks import PATIENCE, Task, Train, answer, evaluations

AHEAD = 2
"""Tasks per worker that may be under way or done before their turn: so much waits in the object store, at most."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's word for: leave CUDA_VISIBLE_DEVICES alone, and warn of nothing
}
"""What Ray reads from the environment, unless the user has set it: nothing is reported to anybody."""


class RayWorker:
    """An actor of Ray's: fetches the job once, does one task after the other."""

    def __init__(self, threads: int, path: list[str]) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        sys.path += [place for place in path if place not in sys.path]  # modules of the user's own
        self._job: Job | None = None

    def do(self, task: Task, job: list[Any], model: Packed) -> Any:
        """The answer to a task; `job` holds where the job lies, `model` the round's weights and what goes with them."""
        try:
            self._job = self._job or unpack(_import().get(job[0]))
        except ImportError as error:
            return RunError(f"a worker of Ray's cannot read the job ({error}): install what it needs on every node")
        weights, received = unpack(model)
        whole = replace(task, received=received) if isinstance(task, Train) else task
        return answer(whole, self._job, weights)


class RayRunner:
    """See `on_ray`."""

    def __init__(self, job: Job, address: str | None, workers: int | None, threads: int, gpus: float) -> None:
        self._ray = _import()
        self._job = job
        self._started = _connect(self._ray, address, (workers or 1) * threads)
        try:
            count = _workers(self._ray.cluster_resources(), workers, threads, gpus)
            self._data = self._put(job)
            limits = {"max_restarts": -1, "max_task_retries": PATIENCE - 1}
            hire = self._ray.remote(num_cpus=threads, num_gpus=gpus, **limits)(RayWorker)
            path = [os.path.abspath(place) for place in sys.path]
            self._workers = [hire.remote(threads, path) for _ in range(count)]
        except BaseException:
            self._disconnect()
            raise

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result]:
        model = self._put((_on_cpu(origin), received))
        for client, outcome in self._map(cohort, lambda client: Train(round, client, {}, memory(client)), model):
            yield Result(client, *outcome)

    def evaluate(self, weights: Weights) -> Counts:
        assert self._job.judged is not None, "the job has no test set"
        model = self._put((_on_cpu(weights), {}))
        answers = self._map(evaluations(len(self._job.judged)), lambda task: task, model)
        return Counts.total(counts for _, group in answers for counts in group)

    def begin_evaluation(self, weights: Weights) -> Evaluation:
        return Done(self.evaluate(weights))

    def close(self) -> None:
        if not self._started:  # else they end with the Ray that was started for them
            for worker in self._workers:
                self._ray.kill(worker)
        self._workers = []
        self._disconnect()

    def _disconnect(self) -> None:
        if self._started:
            self._ray.shutdown()
            self._started = False

    def _put(self, value: Any) -> Any:
        return self._ray.put(pack(value, self._ray.cloudpickle.CloudPickler))

    def _map(self, items: Sequence[Any], task: Callable[[Any], Task], model: Any) -> Iterator[tuple[Any, Any]]:
        """Answers in the order of `items`, which are begun in that order too.

        An iteration that is broken off leaves workers at their last task; the next one waits its turn behind it.
        """
        waiting, begun = deque(items), deque[tuple[Any, Any]]()
        idle, busy = deque(self._workers), dict[Any, Any]()
        while waiting or begun:
            while waiting and idle and len(begun) < AHEAD * len(self._workers):
                item, worker = waiting.popleft(), idle.popleft()
                answered = worker.do.remote(task(item), [self._data], model)
                busy[answered] = worker
                begun.append((item, answered))
            item, first = begun[0]
            if first in busy:
                ready, _ = self._ray.wait(list(busy), fetch_local=False)
                idle.extend(busy.pop(answered) for answered in ready)
            else:
                begun.popleft()
                yield item, self._answer(item, first)

    def _answer(self, item: Any, answered: Any) -> Any:
        try:
            outcome = self._ray.get(answered)
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise RunError(
                f"Ray's workers did not get through client or task {item} in {PATIENCE} tries ({reason}): a node may "
                "be short of memory or without fedra; use fewer workers, or the runner 'sequential' to see the cause"
            ) from error
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def _import() -> Any:
    """Ray itself, which is an extra."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ConfigError("the runner 'ray' needs Ray: install it with pip install 'fedra[ray]'") from None
    return ray


def _connect(ray: Any, address: str | None, cpus: int) -> bool:
    """Start a Ray here or join the cluster; False if this process is in one already, which is then not ours to end."""
    if ray.is_initialized():
        return False
    size = {"num_cpus": max(cpus, default_workers()), "include_dashboard": False} if address is None else {}
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    try:
        _knock(address)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Ray leaves /dev/null open
            ray.init(address or "local", **quiet, **size)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        where = "on this machine" if address is None else f"at runner.address = {address!r}"
        raise ConfigError(f"there is no Ray to be had {where} ({reason}): check the address, or leave it out") from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)  # what SIGTERM does is the run's to say, not Ray's
    return True


def _knock(address: str | None) -> None:
    """Fail at once where nobody listens: Ray itself would go on trying for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _workers(resources: dict[str, float], asked: int | None, threads: int, gpus: float) -> int:
    """How many workers the cluster has room for, or as many as were asked for if it has."""
    room = int(resources.get("CPU", 0) / threads)
    if gpus:
        room = min(room, int(resources.get("GPU", 0) / gpus))
    if room < (asked or 1):
        raise ConfigError(
            f"the Ray cluster has {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs, too few for "
            f"{asked or 1} workers with {threads} CPUs and {gpus:g} GPUs each: lower workers, threads or gpus"
        )
    return asked or room


def _on_cpu(weights: Weights) -> Weights:
    return Weights(*({name: value.detach().cpu() for name, value in group.items()} for group in weights))


def on_ray(
    job: Job,
    *,
    address: str | None = None,
    workers: Annotated[int, Field(ge=1)] | None = None,
    threads: Annotated[int, Field(ge=1)] = 1,
    gpus: Annotated[float, Field(ge=0)] = 0.0,
) -> Runner:
    """Clients as tasks of Ray's workers, by default one per CPU of the cluster with one thread each.

    Without an `address` a Ray is started on this machine and ended with the run; a cluster at an address, and a Ray
    that the process has joined already, stay as they are. `gpus` is each worker's share of a GPU, for device = "cuda".
    Needs the extra 'ray', and on a cluster the same fedra on every node.
    """
    return RayRunner(job, address, workers, threads, gpus)
