"""Trial runs that time a few clients on different runners, with shortened training.

A trial uses a copy of the model and its own random seed, so it does not affect the run.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fedra.core import tree
from fedra.core.batches import Examples
from fedra.core.job import Clients, Job
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model, Weights
from fedra.core.ownership import Owners
from fedra.core.private_steps import with_key
from fedra.core.random import key
from fedra.core.round import broadcast, init_server
from fedra.core.secret_numbers import Secret
from fedra.core.tree import Tree
from fedra.runners.base import Result, Runner, iterate_results
from fedra.runners.sequential import SequentialRunner
from fedra.runners.stacked import stacked

STEPS = 3
"""Local steps per client in a trial: full batches, and the incomplete last one if there is one."""

CLIENTS = 16
"""Maximum number of clients in a trial, enough to show the gain of stacking."""

BUDGET = 0.3
"""Seconds that all clients of a trial may take sequentially; if they would take longer, one is timed."""


@dataclass(frozen=True)
class FewClients:
    """Some of a job's clients of different sizes, each with the data of a few steps."""

    all_clients: Clients
    chosen: Sequence[int]
    local: LocalTraining

    @classmethod
    def of(cls, job: Job, count: int) -> FewClients:
        """`count` clients spread evenly over the sizes, the largest first."""
        by_size = sorted(range(len(job.clients)), key=lambda client: (-job.clients.size(client), client))
        count = min(count, len(by_size), CLIENTS)
        chosen = [by_size[index * len(by_size) // count] for index in range(count)]
        return cls(job.clients, chosen, job.local)

    def __len__(self) -> int:
        return len(self.chosen)

    def size(self, client: int) -> int:
        whole = self.all_clients.size(self.chosen[client])
        batch = self.local.batch or whole
        if whole <= STEPS * batch:
            return whole
        return (STEPS - 1) * batch + (whole % batch or batch)

    def __getitem__(self, client: int) -> Examples:
        own = self.all_clients[self.chosen[client]]
        size = self.size(client)
        return Examples(own.inputs[:size], own.targets[:size], own.transform)

    def joined(self, clients: Sequence[int]) -> Examples | None:
        own = [self[client] for client in clients]
        whole = self.all_clients.joined([self.chosen[client] for client in clients])
        if whole is None:
            return None
        inputs, targets = torch.cat([one.inputs for one in own]), torch.cat([one.targets for one in own])
        return Examples(inputs, targets, whole.transform)

    def tensors(self) -> Iterable[Tensor]:
        return self.all_clients.tensors()


class Trial:
    """Short training of a few of the job's clients on the runner to be timed."""

    def __init__(self, job: Job, cohort: int) -> None:
        clients = FewClients.of(job, cohort)
        model = Model(copy.deepcopy(job.model.module), job.model.device, job.model.precision)
        local = replace(job.local, epochs=1)
        seed = key(job.seed, "calibration")
        owners = job.owners and Owners([job.owners.holdings[client] for client in clients.chosen], job.classes)
        few = replace(job, clients=clients, owners=owners, public=None)  # selecting public examples takes too long
        self.job = replace(few, model=model, local=local, seed=seed, test=None)
        self.clients, self.compiled = len(clients), job.model.compiled  # compiling takes longer than the trial
        self.has_public = job.public is not None
        steps = [job.local.steps(job.clients.size(client)) for client in range(len(job.clients))]
        self._steps = statistics.fmean(steps)
        self._examples = statistics.fmean(map(job.clients.size, range(len(job.clients)))) * job.local.epochs
        self._server = init_server(self.job.algorithm, self.job.initial())

    @cached_property
    def operations(self) -> float:
        """Estimated floating-point operations of a client in a round; the backward pass counts as two forward ones."""
        first = self.job.clients[0]
        inputs = self.job.model.ready(first.transform.prepare(first.inputs[:2].to(self.job.model.device)))
        return 3 * self._examples * _count_operations(self.job.model, self._server.weights, inputs) / len(inputs)

    @property
    def operations_per_step(self) -> float:
        """Floating-point operations of one local step."""
        return self.operations / self._steps

    @cached_property
    def single(self) -> float:
        """Seconds per client of average size on one thread."""
        return self.sequential(threads=1)

    def sequential(self, threads: int) -> float:
        """Seconds per client with this number of threads."""
        runner = SequentialRunner(self.job, threads)
        self._seconds(runner, [0])  # warm-up: the first pass of a process selects kernels
        one = self._seconds(runner, [0])
        if one * self.clients > BUDGET:
            return self._scale(one, [0])
        return self._scale(min(self._seconds(runner, range(self.clients)) for _ in range(2)), range(self.clients))

    @cached_property
    def stacked(self) -> float:
        """Seconds per client in a stack on one thread; call `stackable` first to warm up."""
        clients, runner = range(self.clients), stacked(self.job, threads=1)
        return self._scale(min(self._seconds(runner, clients) for _ in range(2)), clients)

    def stackable(self) -> bool:
        """Whether stacked and sequential results agree in two rounds; in the second, every other client has state."""
        clients, reference = range(self.clients), SequentialRunner(self.job, 1)
        try:
            runner = stacked(self.job, threads=1)
            expected = self._round(reference, 0, clients, {})
            memories = {result.client: result.memory for result in expected[::2]}
            return _agree(self._round(runner, 0, clients, {}), expected) and _agree(
                self._round(runner, 1, clients, memories), self._round(reference, 1, clients, memories)
            )
        except Exception:  # a part or a layer that vmap does not support; sequentially it may work
            return False

    def count_flops(self) -> float:
        """Floating-point operations of a local step, counted by torch while one client trains.

        Products and convolutions of all passes count, forward and backward, and what the algorithm adds: passes at
        perturbed weights and frozen models. Unlike `operations`, it is not an estimate.
        """
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            result = self._round(SequentialRunner(self.job, 1), 0, [0], {})[0]
        return float(counter.get_total_flops()) / result.upload.steps

    def traffic(self) -> int:
        """Bytes of a client's upload and state."""
        result = self._round(SequentialRunner(self.job, 1), 0, [0], {})[0]
        return tree.size_in_bytes({"memory": result.memory, **_uploaded(result)})

    def _round(self, runner: Runner, round: int, clients: Sequence[int], memories: dict[int, Tree]) -> list[Result]:
        job, weights = self.job, self._server.weights
        received, common = broadcast(job.algorithm, self._server), job.common(weights)

        def memory(client: int) -> Tree:
            memory = job.client_state(client, weights, memories.get(client, {}))
            return with_key(job.algorithm, memory, Secret.from_seed(job.seed))

        return list(iterate_results(runner.train(round, common, received, clients, memory)))

    def _seconds(self, runner: Runner, clients: Sequence[int]) -> float:
        started = time.perf_counter()
        self._round(runner, 0, clients, {})  # uploads contain Python numbers, so the device is synchronized
        return time.perf_counter() - started

    def _scale(self, seconds: float, clients: Sequence[int]) -> float:
        """Scale the time of shortened training of some clients to a full client."""
        steps = sum(self.job.local.steps(self.job.clients.size(client)) for client in clients)
        return seconds * self._steps / steps


@torch.no_grad()
def _count_operations(model: Model, weights: Weights, inputs: Tensor) -> float:
    """Floating-point operations of the linear and convolutional layers in a forward pass."""
    total = 0.0

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        nonlocal total
        total += 2 * layer.weight.numel() * output.numel() / len(layer.weight)  # type: ignore[operator, arg-type]

    layers = [layer for layer in model.module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    model.output(weights, inputs)
    for hook in hooks:
        hook.remove()
    return total


def _agree(left: Sequence[Result], right: Sequence[Result]) -> bool:
    """Whether two runners' results are equal up to rounding."""
    return all(_close(one, other) for one, other in zip(left, right, strict=True))


def _close(one: Result, other: Result) -> bool:
    left, right = (tree.flatten({"memory": result.memory, **_uploaded(result)}) for result in (one, other))
    return left.keys() == right.keys() and all(
        torch.allclose(value, right[path], rtol=1e-3, atol=1e-5) for path, value in left.items()
    )


def _uploaded(result: Result) -> Tree:
    return {"delta": result.upload.delta, "buffers": result.upload.buffers, "extras": result.upload.extras}
