"""How long a client takes on one runner and on another, tried on a few clients cut short.

The trial has data, a model and a random seed of its own: nothing of the run is read but its settings, and nothing is
left behind.
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
from fedra.core.random import key
from fedra.core.round import broadcast, init_server
from fedra.core.tree import Tree
from fedra.runners.base import Result, Runner, one_by_one
from fedra.runners.sequential import SequentialRunner
from fedra.runners.stacked import stacked

STEPS = 3
"""Local steps of a client in a trial: whole batches, and the incomplete last one if there is one."""

CLIENTS = 16
"""Clients in a trial, at most: a stack of so many shows what stacking brings."""

BUDGET = 0.3
"""Seconds that all clients of a trial may take one after the other; where they would take longer, one is tried."""


@dataclass(frozen=True)
class FewClients:
    """Some of a job's clients, large and small ones, each with the data of a few steps."""

    everyone: Clients
    chosen: Sequence[int]
    local: LocalTraining

    @classmethod
    def of(cls, job: Job, count: int) -> FewClients:
        """`count` clients evenly over all sizes, the largest first."""
        by_size = sorted(range(len(job.clients)), key=lambda client: (-job.clients.size(client), client))
        count = min(count, len(by_size), CLIENTS)
        chosen = [by_size[place * len(by_size) // count] for place in range(count)]
        return cls(job.clients, chosen, job.local)

    def __len__(self) -> int:
        return len(self.chosen)

    def size(self, client: int) -> int:
        whole = self.everyone.size(self.chosen[client])
        batch = self.local.batch or whole
        if whole <= STEPS * batch:
            return whole
        return (STEPS - 1) * batch + (whole % batch or batch)

    def __getitem__(self, client: int) -> Examples:
        own = self.everyone[self.chosen[client]]
        size = self.size(client)
        return Examples(own.inputs[:size], own.targets[:size], own.transform)

    def joined(self, clients: Sequence[int]) -> Examples | None:
        own = [self[client] for client in clients]
        whole = self.everyone.joined([self.chosen[client] for client in clients])
        if whole is None:
            return None
        inputs, targets = torch.cat([one.inputs for one in own]), torch.cat([one.targets for one in own])
        return Examples(inputs, targets, whole.transform)

    def tensors(self) -> Iterable[Tensor]:
        return self.everyone.tensors()


class Trial:
    """A few of the job's clients, trained for a round or two by whatever runner is to be timed."""

    def __init__(self, job: Job, cohort: int) -> None:
        clients = FewClients.of(job, cohort)
        model = Model(copy.deepcopy(job.model.module), job.model.device, job.model.precision)
        local = replace(job.local, epochs=1)
        seed = key(job.seed, "calibration")
        owners = job.owners and Owners([job.owners.holdings[client] for client in clients.chosen], job.classes)
        few = replace(job, clients=clients, owners=owners, public=None)  # to choose public ones would take too long
        self.job = replace(few, model=model, local=local, seed=seed, test=None)
        self.clients, self.compiled = len(clients), job.model.compiled  # to compile would take longer than the trial
        self.has_public = job.public is not None
        steps = [job.local.steps(job.clients.size(client)) for client in range(len(job.clients))]
        self._steps = statistics.fmean(steps)
        self._examples = statistics.fmean(map(job.clients.size, range(len(job.clients)))) * job.local.epochs
        self._server = init_server(self.job.algorithm, self.job.initial())

    @cached_property
    def arithmetic(self) -> float:
        """Floating-point operations of a whole client's training, at least: one pass there and two back."""
        first = self.job.clients[0]
        inputs = self.job.model.ready(first.transform.prepare(first.inputs[:2].to(self.job.model.device)))
        return 3 * self._examples * _operations(self.job.model, self._server.weights, inputs) / len(inputs)

    @property
    def arithmetic_of_a_step(self) -> float:
        """Its share in one local step."""
        return self.arithmetic / self._steps

    @cached_property
    def alone(self) -> float:
        """Seconds of a whole client of the mean length on one thread."""
        return self.sequential(threads=1)

    def sequential(self, threads: int) -> float:
        """Seconds of a whole client, alone on so many threads."""
        runner = SequentialRunner(self.job, threads)
        self._seconds(runner, [0])  # the first pass of a process chooses kernels
        one = self._seconds(runner, [0])
        if one * self.clients > BUDGET:
            return self._whole(one, [0])
        return self._whole(min(self._seconds(runner, range(self.clients)) for _ in range(2)), range(self.clients))

    @cached_property
    def stacked(self) -> float:
        """Seconds of a whole client in a stack on one thread; the stack is warm when `stackable` was asked before."""
        everyone, runner = range(self.clients), stacked(self.job, threads=1)
        return self._whole(min(self._seconds(runner, everyone) for _ in range(2)), everyone)

    def stackable(self) -> bool:
        """Whether a stack does what its clients do alone, seen in two rounds; in the second only every other client
        remembers the first.
        """
        everyone, reference = range(self.clients), SequentialRunner(self.job, 1)
        try:
            runner = stacked(self.job, threads=1)
            wanted = self._round(reference, 0, everyone, {})
            memories = {result.client: result.memory for result in wanted[::2]}
            return _alike(self._round(runner, 0, everyone, {}), wanted) and _alike(
                self._round(runner, 1, everyone, memories), self._round(reference, 1, everyone, memories)
            )
        except Exception:  # whatever a part or a layer does not bear in a stack; alone it may well work
            return False

    def traffic(self) -> int:
        """Bytes that a client sends and remembers."""
        result = self._round(SequentialRunner(self.job, 1), 0, [0], {})[0]
        return tree.size_in_bytes({"memory": result.memory, **_sent(result)})

    def _round(self, runner: Runner, round: int, clients: Sequence[int], memories: dict[int, Tree]) -> list[Result]:
        job, weights = self.job, self._server.weights
        received, common = broadcast(job.algorithm, self._server), job.common(weights)

        def remembered(client: int) -> Tree:
            return job.remembered(client, weights, memories.get(client, {}))

        return list(one_by_one(runner.train(round, common, received, clients, remembered)))

    def _seconds(self, runner: Runner, clients: Sequence[int]) -> float:
        started = time.perf_counter()
        self._round(runner, 0, clients, {})  # its figures are numbers: a device has finished when they are there
        return time.perf_counter() - started

    def _whole(self, seconds: float, clients: Sequence[int]) -> float:
        """The time of some clients cut short as the time of one whole client."""
        tried = sum(self.job.local.steps(self.job.clients.size(client)) for client in clients)
        return seconds * self._steps / tried


@torch.no_grad()
def _operations(model: Model, weights: Weights, inputs: Tensor) -> float:
    """Floating-point operations of a pass through the layers that have most of them: dense ones and convolutions."""
    counted = 0.0

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        nonlocal counted
        counted += 2 * layer.weight.numel() * output.numel() / len(layer.weight)  # type: ignore[operator, arg-type]

    layers = [layer for layer in model.module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    model.output(weights, inputs)
    for hook in hooks:
        hook.remove()
    return counted


def _alike(left: Sequence[Result], right: Sequence[Result]) -> bool:
    """Whether two runners' results differ by rounding alone."""
    return all(_close(one, other) for one, other in zip(left, right, strict=True))


def _close(one: Result, other: Result) -> bool:
    left, right = (tree.flatten({"memory": result.memory, **_sent(result)}) for result in (one, other))
    return left.keys() == right.keys() and all(
        torch.allclose(value, right[path], rtol=1e-3, atol=1e-5) for path, value in left.items()
    )


def _sent(result: Result) -> Tree:
    return {"delta": result.upload.delta, "buffers": result.upload.buffers, "extras": result.upload.extras}
