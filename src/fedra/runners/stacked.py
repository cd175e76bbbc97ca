"""Many clients at once as stacked parameters (`torch.func.vmap`): for small models, and for GPUs.

Equal to sequential but for rounding (1e-5 in float32). The cohort is cut into chunks by memory, in its own order, so
that uploads can be folded chunk by chunk.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fedra.core.evaluate import Counts
from fedra.core.job import Job
from fedra.core.model import Model, Weights
from fedra.core.part import Part
from fedra.core.tree import Tree, size_in_bytes
from fedra.errors import ConfigError
from fedra.runners.base import Result, Runner, threads
from fedra.runners.processes import default_workers
from fedra.runners.sequential import SequentialRunner
from fedra.runners.stacked_data import StackedData
from fedra.runners.stacked_round import Common, train_stack

WEIGHT_COPIES = 6
"""Stacks as large as the weights: weights, gradient, two of an optimiser, one of memory, one in passing."""

PASSES = 3
"""Passes whose activations may be alive at once: the training pass, its gradient, a teacher's."""


class StackedRunner:
    """See `stacked`."""

    def __init__(self, job: Job, chunk: int | None, threads: int, memory: float) -> None:
        self._job = job
        self._chunk = chunk
        self._threads = threads
        self._budget = memory * 2**30
        self._alone = SequentialRunner(job, threads)

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Result]:
        model = self._job.model
        origin = Weights(model.arrange(origin.params), model.arrange(origin.buffers))
        common = Common.of(self._job, round, origin, model.arrange_tree(received))
        size = self._chunk or self._clients_at_once(origin, cohort)
        for start in range(0, len(cohort), size):
            clients = cohort[start : start + size]
            with threads(self._threads):
                results = self._train_chunk(round, common, clients, memory)
            yield from (results[client] for client in clients)

    def evaluate(self, weights: Weights) -> Counts:
        return self._alone.evaluate(weights)

    def close(self) -> None:
        """Nothing to give back."""

    def _train_chunk(
        self, round: int, common: Common, clients: Sequence[int], memory: Callable[[int], Tree]
    ) -> dict[int, Result]:
        try:
            data = StackedData(self._job, round, clients)
            done = train_stack(common, data, [memory(client) for client in data.clients])
        except Exception as error:
            error.add_note(f"in round {round + 1}, in the stack of clients {list(clients)}")
            if isinstance(error, RuntimeError) and ("vmap" in str(error) or "functorch" in str(error)):
                raise ConfigError(_refusal(error, self._job.model.module)) from error
            raise
        return {client: Result(client, *one) for client, one in zip(data.clients, done, strict=True)}

    def _clients_at_once(self, origin: Weights, cohort: Sequence[int]) -> int:
        """How many of the cohort's largest client fit into the memory that the runner may use."""
        job = self._job
        largest = max(cohort, key=job.clients.size)
        examples = job.clients[largest]
        batch = min(job.local.schedule.batch or len(examples), len(examples))
        inputs = job.model.ready(examples.transform.prepare(examples.inputs[[0, 0]].to(job.model.device)))
        weights = WEIGHT_COPIES * size_in_bytes(origin._asdict())
        data = len(examples) * inputs[0].nbytes
        return max(1, int(self._budget / (weights + data + PASSES * batch * _activations(job.model, origin, inputs))))


def _activations(model: Model, weights: Weights, inputs: Tensor) -> int:
    """Bytes that a pass keeps for its gradient, per example; of one alone there are no batch statistics."""
    kept = 0

    def keep(value: Tensor) -> Tensor:
        nonlocal kept
        kept += value.nbytes if id(value) not in known else 0
        return value

    params = {name: value.detach().requires_grad_() for name, value in weights.params.items()}
    known = {id(value) for value in params.values()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        model.output(Weights(params, weights.buffers), inputs)
    return kept // len(inputs)


def _refusal(error: RuntimeError, module: nn.Module) -> str:
    """The sentence for what cannot be stacked: the innermost part or layer at work, and torch's own reason."""
    layers = {
        id(layer): f"the model's layer '{name}' ({type(layer).__name__})" for name, layer in module.named_modules()
    }
    culprit = "a part or a layer"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        own = frame.f_locals.get("self")
        if isinstance(own, Part):
            culprit = f"the part '{own.name}'"
        culprit = layers.get(id(own), culprit)
    reason = str(error).partition("\n")[0].partition(". ")[0]
    return f"{culprit} cannot be stacked ({reason}): set runner.name = 'processes' or 'sequential'"


def stacked(
    job: Job,
    *,
    chunk: Annotated[int, Field(ge=1)] | None = None,
    threads: Annotated[int, Field(ge=1)] | None = None,
    memory: Annotated[float, Field(gt=0)] = 2.0,
) -> Runner:
    """Many clients at once as stacked parameters: `chunk` clients, by default as many as `memory` (in GB) holds.

    The estimate for one client: six times the model, its data, and three batches of activations. All cores
    work on one stack unless `threads` says otherwise.
    """
    return StackedRunner(job, chunk, threads or default_workers(), memory)
