"""An estimate of the memory that training needs, compared with the machine's before the first round.

It counts what training holds at the same time at least: the server's model and its state, one client per worker with
its gradients, optimizer and activations, client state in RAM, and the uploads that a robust rule keeps. Data sets
compare their size themselves. Nothing is allocated: networks and states are computed on tensors without memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedra.config.schema import OBJECT, Config
from fedra.core import tree
from fedra.core.capabilities import ClientState, ServerState
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.random import scoped_seed
from fedra.core.robust_fold import Selecting
from fedra.experiment.cohort import CohortRule
from fedra.machine import format_bytes, physical_memory, require_memory
from fedra.runners.processes import default_workers
from fedra.trust import is_import

MOST_COPIES = 16
"""Copies of the weights on the server and on a client, at most."""
MOST_ACTIVATIONS = 2048
"""Activations per number of an input in the networks here, at most; a layer that is wider has as many weights."""


class Item(NamedTuple):
    """Something that training holds: its bytes, and the setting that makes it smaller."""

    size: int
    what: str
    remedy: str


def check_memory(config: Config, job: Job) -> None:
    """Raise ConfigError if training needs more memory than this machine has, with the setting that is too large."""
    memory = physical_memory()
    if memory is None or job.model.device.type != "cpu":  # a GPU has a memory of its own
        return
    estimate = MemoryEstimate(config, job)
    if estimate.most <= memory:
        return  # the first tensor without memory takes a second of imports
    items = sorted(estimate.items(), reverse=True)
    largest = f"{format_bytes(items[0].size)} of it for {items[0].what}; {items[0].remedy}"
    require_memory("training", sum(item.size for item in items), largest)


class MemoryEstimate:
    """What a job holds in memory while it trains.

    Args:
        config: The configuration.
        job: The job.
    """

    def __init__(self, config: Config, job: Job) -> None:
        self.config, self.job = config, job
        self.clients = len(job.clients)
        self.cohort = CohortRule(config.cohort.fraction).size(self.clients)
        pool: int = config.runner.settings.get("workers") or default_workers()
        self.workers = min(pool, self.cohort) if config.runner.name == "processes" else 1
        largest = max(job.clients.size(client) for client in range(self.clients))
        self.rows = min(job.local.batch or largest, largest)
        combine = job.algorithm.combine
        self.kept = self.cohort if combine.robust or isinstance(combine, Selecting) else 0
        self.weights: int = sum(
            value.numel() * value.element_size() for value in job.model.module.state_dict().values()
        )

    @property
    def most(self) -> int:
        """A bound on the estimate that is computed at once."""
        activations = self.weights + 4 * MOST_ACTIVATIONS * math.prod(self.job.shape or ())
        training = self.workers * (self.rows * activations + MOST_COPIES * self.weights)
        states = 2 * self.clients * self.weights * len(self.job.algorithm.with_capability(ClientState))
        return training + (self.kept + MOST_COPIES) * self.weights + min(states, self._ram)

    @property
    def _ram(self) -> int:
        return int(self.config.memory.ram * 2**20)

    def items(self) -> Iterator[Item]:
        """Yield what training holds at the same time."""
        config, job, module = self.config, self.job, self.job.model.module
        outline = Weights(
            {name: value.detach().to("meta") for name, value in module.named_parameters()},
            {name: value.to("meta") for name, value in module.named_buffers()},
        )
        trained = tree.select(outline.params, job.algorithm.sharing.trained(outline.params))
        size = tree.size_in_bytes(trained)
        network = f"choose a smaller model ('{config.model.name}')"
        fewer = f", or runner.workers ({self.workers})" if self.workers > 1 else ""
        state = _state_bytes(job.algorithm.with_capability(ServerState), "init_server", outline)
        yield Item(self.weights + state, "the weights and the state of the server", network)
        optimizer = tree.size_in_bytes(job.local.at(0).init(trained))
        # A client has its weights, their gradients and, at the end, their change.
        yield Item(self.workers * (3 * size + optimizer), "the weights and the optimizer of clients", network + fewer)
        yield Item(
            self.workers * self._activations(outline),
            f"the activations of a batch of {self.rows:,} examples",
            f"lower local.batch ({config.local.batch or 'all'}){fewer}",
        )
        state = _state_bytes(job.algorithm.with_capability(ClientState), "init_client", outline)
        yield Item(
            min(self.clients * state, self._ram),
            f"the state of {self.clients:,} clients",
            f"lower memory.ram ({config.memory.ram:g} MB): the rest is stored on disk",
        )
        yield Item(
            self.kept * size,
            f"the uploads of {self.kept:,} clients, which the rule '{job.algorithm.combine.name}' keeps",
            f"lower cohort.fraction ({config.cohort.fraction:g})",
        )

    def _activations(self, outline: Weights) -> int:
        """Return the bytes that a forward pass keeps for the backward pass; those of your own networks are unknown."""
        name, shape = self.config.model.name, self.job.shape
        if shape is None or self.config.compile or name == OBJECT or is_import(name):
            return 0
        kept = _kept_bytes(self.job.model.module, outline, (2, *shape)) * self.rows // 2
        return kept * self.job.model.precision.passes.itemsize // self.job.model.precision.weights.itemsize


def _state_bytes(parts: dict[str, Any], method: str, outline: Weights) -> int:
    """Return the bytes of the initial state of parts; those of a part that needs values of the weights are unknown."""
    size = 0
    for part in parts.values():
        try:
            size += tree.size_in_bytes(getattr(part, method)(outline))
        except (RuntimeError, NotImplementedError):
            continue
    return size


def _kept_bytes(module: nn.Module, outline: Weights, shape: tuple[int, ...]) -> int:
    """Return the bytes that autograd keeps of a forward pass, without the weights."""
    params = {name: value.clone().requires_grad_() for name, value in outline.params.items()}
    own = {value.untyped_storage()._cdata for value in params.values()}
    kept: dict[int, int] = {}

    def count(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
        return value

    inputs = torch.zeros(shape, device="meta", dtype=next(iter(params.values())).dtype)
    with scoped_seed(0), torch.autograd.graph.saved_tensors_hooks(count, lambda value: value):
        torch.func.functional_call(module, {**params, **outline.buffers}, (inputs,))
    return sum(kept.values())
