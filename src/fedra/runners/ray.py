"""Training clients on Ray workers, on this machine or a cluster: bit-identical to sequential with one thread.

The job is put into Ray's object store once, the model once per round; workers of a node share both. Ray restarts
workers that die and repeats their tasks. No data leave the user's cluster.
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
from fedra.runners.base import MOST_WORKERS, Done, Evaluation, Result, Runner
from fedra.runners.packing import Packed, pack, unpack
from fedra.runners.pages import keep_freed_memory
from fedra.runners.processes import default_workers
from fedra.runners.tasks import ATTEMPTS, Task, Train, evaluation_tasks, run_task

AHEAD = 2
"""Maximum number of tasks per worker that run or wait for their turn in the object store."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # do not change CUDA_VISIBLE_DEVICES, and do not warn about it
}
"""Defaults for Ray's environment variables: no usage statistics, no warnings."""


class RayWorker:
    """A Ray actor that fetches the job once and runs one task after another."""

    def __init__(self, threads: int, path: list[str]) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        sys.path += [folder for folder in path if folder not in sys.path]  # for the user's own modules
        self._job: Job | None = None

    def do(self, task: Task, job: list[Any], model: Packed) -> Any:
        """Run a task; `job` holds a reference to the job, `model` the round's weights and broadcast."""
        try:
            self._job = self._job or unpack(_import().get(job[0]))
        except ImportError as error:
            return RunError(f"a Ray worker cannot load the job ({error}): install what it needs on every node")
        weights, received = unpack(model)
        complete = replace(task, received=received) if isinstance(task, Train) else task
        return run_task(complete, self._job, weights)


class RayRunner:
    """See `on_ray`."""

    def __init__(self, job: Job, address: str | None, workers: int | None, threads: int, gpus: float) -> None:
        self._ray = _import()
        self._job = job
        self._started = _connect(self._ray, address, (workers or 1) * threads)
        try:
            count = _workers(self._ray.cluster_resources(), workers, threads, gpus)
            self._data = self._put(job)
            limits = {"max_restarts": -1, "max_task_retries": ATTEMPTS - 1}
            actor = self._ray.remote(num_cpus=threads, num_gpus=gpus, **limits)(RayWorker)
            path = [os.path.abspath(folder) for folder in sys.path]
            self._workers = [actor.remote(threads, path) for _ in range(count)]
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
        assert self._job.evaluated_examples is not None, "the job has no test set"
        model = self._put((_on_cpu(weights), {}))
        answers = self._map(evaluation_tasks(len(self._job.evaluated_examples)), lambda task: task, model)
        return Counts.total(counts for _, group in answers for counts in group)

    def start_evaluation(self, weights: Weights) -> Evaluation:
        return Done(self.evaluate(weights))

    def close(self) -> None:
        if not self._started:  # otherwise shutting down Ray ends them
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
        """Run tasks and yield their answers in order; tasks also start in order.

        If the caller stops early, workers finish their last task before they take one of the next call.
        """
        waiting, started = deque(items), deque[tuple[Any, Any]]()
        idle, busy = deque(self._workers), dict[Any, Any]()
        while waiting or started:
            while waiting and idle and len(started) < AHEAD * len(self._workers):
                item, worker = waiting.popleft(), idle.popleft()
                reference = worker.do.remote(task(item), [self._data], model)
                busy[reference] = worker
                started.append((item, reference))
            item, first = started[0]
            if first in busy:
                ready, _ = self._ray.wait(list(busy), fetch_local=False)
                idle.extend(busy.pop(reference) for reference in ready)
            else:
                started.popleft()
                yield item, self._answer(item, first)

    def _answer(self, item: Any, reference: Any) -> Any:
        try:
            outcome = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise RunError(
                f"Ray workers failed at client or task {item} in {ATTEMPTS} attempts ({reason}), perhaps for lack of "
                "memory or of fedra on a node: use fewer workers, or the runner 'sequential' to see the cause"
            ) from error
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def _import() -> Any:
    """Import Ray, an optional dependency."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ConfigError("Ray must be installed for the runner 'ray': pip install 'fedra[ray]'") from None
    return ray


def _connect(ray: Any, address: str | None, cpus: int) -> bool:
    """Start Ray on this machine or join a cluster; False if this process is already connected, to be left connected."""
    if ray.is_initialized():
        return False
    size = {"num_cpus": max(cpus, default_workers()), "include_dashboard": False} if address is None else {}
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    try:
        _check_reachable(address)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Ray leaves /dev/null open
            ray.init(address or "local", **quiet, **size)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        where = "on this machine" if address is None else f"at runner.address = {address!r}"
        raise ConfigError(f"cannot connect to Ray {where} ({reason}): check the address, or leave it out") from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)  # Ray replaces the handler of the run
    return True


def _check_reachable(address: str | None) -> None:
    """Fail at once if nothing listens at the address; Ray itself would retry for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _workers(resources: dict[str, float], requested: int | None, threads: int, gpus: float) -> int:
    """The requested number of workers, or as many as fit into the cluster."""
    possible = int(resources.get("CPU", 0) / threads)
    if gpus:
        possible = min(possible, int(resources.get("GPU", 0) / gpus))
    if possible < (requested or 1):
        raise ConfigError(
            f"the Ray cluster must have {threads} CPUs and {gpus:g} GPUs for each of {requested or 1} workers, got "
            f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs: lower workers, threads or gpus"
        )
    return requested or possible


def _on_cpu(weights: Weights) -> Weights:
    return Weights(*({name: value.detach().cpu() for name, value in group.items()} for group in weights))


def on_ray(
    job: Job,
    *,
    address: str | None = None,
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None = None,
    threads: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 1,
    gpus: Annotated[float, Field(ge=0)] = 0.0,
) -> Runner:
    """Ray workers, by default one per CPU of the cluster with one thread each.

    Without an `address`, Ray is started on this machine and shut down after the run; a cluster at an address, or one
    that the process has already joined, keeps running. `gpus` is each worker's share of a GPU, for device = "cuda".
    Needs the extra 'ray', and on a cluster the same version of fedra on every node.
    """
    return RayRunner(job, address, workers, threads, gpus)
