"""Many clients at once as stacked parameters (`torch.func.vmap`), for small models and for GPUs.

Equal to sequential up to rounding (1e-5 in float32). The cohort is split, in order, into chunks that fit into memory,
so uploads can be combined chunk by chunk.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fedra.core.batches import CACHE_BYTES
from fedra.core.capabilities import TrainsAlongside
from fedra.core.evaluate import Counts
from fedra.core.job import Job
from fedra.core.model import Model, Weights
from fedra.core.part import Part
from fedra.core.private_steps import client_secret, private_steps
from fedra.core.program import ClientProgram
from fedra.core.secret_numbers import Secret
from fedra.core.tree import Tree, size_in_bytes
from fedra.errors import ConfigError
from fedra.runners import RUNNERS
from fedra.runners.base import MOST_WORKERS, Done, Evaluation, Results, Runner, threads
from fedra.runners.processes import default_workers
from fedra.runners.sequential import SequentialRunner
from fedra.runners.stacked_clients import StackedClients
from fedra.runners.stacked_data import StackedData
from fedra.runners.stacked_round import mixes_examples, train_stack
from fedra.runners.stacked_states import StateGroup, recall_groups

WEIGHT_COPIES = 6
"""Stacks of the size of the weights: weights, gradient, two of the optimizer, client state, a temporary one."""

PASSES = 3
"""Passes whose activations may be in memory at once: training, its gradient, a teacher."""

MEMORY = 2.0
"""Gigabytes that a stack may take by default."""

THREAD_WORK = 2**20
"""Weights of a stack per thread; with fewer, a kernel ends before a second thread has started."""


NAMED = 10
"""Clients of a stack that an error names."""


class StackedRunner:
    """See `stacked`."""

    def __init__(self, job: Job, chunk: int | None, threads: int | None, memory: float = MEMORY) -> None:
        self._job = job
        self._chunk = chunk
        self._threads = threads
        self._memory = memory
        self._padding_checked = False
        self._fitting: dict[int, int] = {}  # clients at once, by the number of examples of the largest
        self._last: StackedClients | None = None  # of the round before, unless they take much memory
        self._sequential = SequentialRunner(job, threads or default_workers())

    def train(
        self, round: int, origin: Weights, received: Tree, cohort: Sequence[int], memory: Callable[[int], Tree]
    ) -> Iterator[Results]:
        size = self._chunk or self._clients_at_once(origin, cohort)
        for start in range(0, len(cohort), size):
            clients = cohort[start : start + size]
            yield self.train_chunk(round, origin, received, clients, recall_groups(memory, clients))

    def train_chunk(
        self, round: int, origin: Weights, received: Tree, clients: Sequence[int], states: Sequence[StateGroup]
    ) -> Results:
        """Train these clients as one stack, from the states of those that have one."""
        names = (*origin.params, *self._job.owned)
        with threads(self._threads or _threads(len(clients), origin)):
            program = self._job.program(round, origin, received, names, functional=True)
            return self._train_chunk(round, program, clients, states)

    def evaluate(self, weights: Weights) -> Counts:
        return self._sequential.evaluate(weights)

    def start_evaluation(self, weights: Weights) -> Evaluation:
        return Done(self.evaluate(weights))

    def close(self) -> None:
        """Do nothing."""

    def _clients_at_once(self, origin: Weights, cohort: Sequence[int]) -> int:
        """See `clients_at_once`, which is called once for each size of the largest client."""
        largest = max(map(self._job.clients.size, cohort))
        if largest not in self._fitting:
            self._fitting[largest] = clients_at_once(self._job, origin, cohort, self._memory)
        return self._fitting[largest]

    def _stack(self, clients: Sequence[int]) -> StackedClients:
        """What these clients have in every round: that of the stack before, if it had the same clients."""
        if self._last is not None and self._last.requested == list(clients):
            return self._last
        stack = StackedClients(self._job, clients)
        self._last = stack if stack.nbytes <= CACHE_BYTES else None
        return stack

    def _train_chunk(
        self, round: int, program: ClientProgram, clients: Sequence[int], states: Sequence[StateGroup]
    ) -> Results:
        try:
            stack = self._stack(clients)
            data = StackedData(self._job, round, stack, _secrets(self._job, clients, states))
            check = data.pads and not self._padding_checked
            order = _places(clients, stack.clients)
            sorted_states = [StateGroup([order[index] for index in group.indices], group.states) for group in states]
            memories, uploads = train_stack(program, data, sorted_states, check_padding=check)
            self._padding_checked |= data.pads
        except Exception as error:
            error.add_note(f"in round {round + 1}, in the stack of clients {_list_some(clients)}")
            if isinstance(error, RuntimeError) and ("vmap" in str(error) or "functorch" in str(error)):
                raise ConfigError(_explain(error, self._job.model.module)) from error
            raise
        return Results(clients, memories.select(order), uploads.select(order))


def _places(clients: Sequence[int], in_stack: Sequence[int]) -> Sequence[int]:
    """Each client's place in the stack."""
    if list(clients) == in_stack:
        return range(len(in_stack))
    places = {client: place for place, client in enumerate(in_stack)}
    return [places[client] for client in clients]


def _list_some(clients: Sequence[int]) -> str:
    """The first clients, and how many more there are."""
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    return ", ".join(map(str, clients[:NAMED])) + more


def _secrets(job: Job, clients: Sequence[int], states: Sequence[StateGroup]) -> dict[int, Secret | None]:
    """The keys of the clients, if their local steps are private."""
    if private_steps(job.algorithm) is None:
        return {}
    stored = {clients[index]: state for group in states for index, state in zip(*group, strict=True)}
    return {client: client_secret(job.algorithm, stored.get(client, {})) for client in clients}


def clients_at_once(job: Job, origin: Weights, cohort: Sequence[int], memory: float) -> int:
    """How many clients of the size of the cohort's largest fit into `memory` GB."""
    largest = max(cohort, key=job.clients.size)
    examples = job.clients[largest]
    batch = min(job.local.batch or len(examples), len(examples))
    inputs = job.model.ready(examples.transform.prepare(examples.inputs[[0, 0]].to(job.model.device)))
    models = 2 if job.algorithm.with_capability(TrainsAlongside) else 1
    weights = WEIGHT_COPIES * models * size_in_bytes(origin._asdict())
    data = len(examples) * inputs[0].nbytes
    whole = Weights({**job.model.weights().params, **origin.params}, origin.buffers)
    return max(1, int(memory * 2**30 / (weights + data + PASSES * batch * _activations(job.model, whole, inputs))))


def _threads(clients: int, origin: Weights) -> int:
    """One thread per `THREAD_WORK` weights of the stack, at most one per core."""
    weights = clients * sum(value.numel() for value in origin.params.values())
    return max(1, min(default_workers(), weights // THREAD_WORK))


def _activations(model: Model, weights: Weights, inputs: Tensor) -> int:
    """Bytes that autograd saves per example; `inputs` has two examples, because one has no batch statistics."""
    saved = 0

    def save(value: Tensor) -> Tensor:
        nonlocal saved
        saved += value.nbytes if id(value) not in known else 0
        return value

    params = {name: value.detach().requires_grad_() for name, value in weights.params.items()}
    known = {id(value) for value in params.values()}
    with torch.autograd.graph.saved_tensors_hooks(save, lambda value: value):
        model.output(Weights(params, weights.buffers), inputs)
    return saved // len(inputs)


def check_stackable(job: Job) -> None:
    """Raise before training if the job needs what torch cannot do inside vmap."""
    model = job.model
    if job.public is not None:
        raise ConfigError(
            "clients that select public examples have different numbers of them and cannot be stacked: use the runner "
            "'processes' or 'sequential'"
        )
    if model.compiled:
        raise ConfigError("compiled passes cannot be stacked: do not compile, or use the runner 'processes'")
    if model.precision.mixed and mixes_examples(model.module):
        raise ConfigError(
            "the stacked runner cannot train batch normalization in half precision: use precision 'float32', a model "
            "with another normalization (such as group normalization), or the runner 'processes'"
        )


def _explain(error: RuntimeError, module: nn.Module) -> str:
    """The message for what cannot be stacked: the innermost part or layer in the traceback, and torch's reason."""
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
    return f"{culprit} cannot be stacked ({reason}): use the runner 'processes' or 'sequential'"


@RUNNERS.add("stacked")
def stacked(
    job: Job,
    *,
    chunk: Annotated[int, Field(ge=1)] | None = None,
    threads: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None = None,
    memory: Annotated[float, Field(gt=0)] = MEMORY,
) -> Runner:
    """Many clients at once as stacked parameters: `chunk` clients, by default as many as fit into `memory` (in GB).

    The estimate per client is six times the model, its data, and three batches of activations. A stack uses one thread
    per 2^20 weights, at most one per core, unless `threads` is set.
    """
    check_stackable(job)
    return StackedRunner(job, chunk, threads, memory)
