"""The batches of several clients as stacks (clients, batch, ...) with padding and a mask.

Clients are sorted by their number of steps, most first, so the clients that still train at any step are the first
`active` ones. Padding repeats one of the client's own examples, whose input and label are valid in every term; the
mask excludes it from means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.batches import Examples, LocalData
from fedra.core.capabilities import StepDraws
from fedra.core.draws import Draws
from fedra.core.job import Job
from fedra.core.poisson_batches import PoissonBatches
from fedra.core.random import shuffles
from fedra.core.secret_numbers import Secret
from fedra.core.tree import Tree
from fedra.core.view import Batch
from fedra.runners.stacked_clients import StackedClients

LOOKUP_BATCHES = 4
"""Batches of a client in one pass of a frozen model, which keeps no values for gradients."""


class StackedBatch(NamedTuple):
    """One step's batches; `sizes` are their numbers of examples, `mask` is None without padding.

    `drawn` are random numbers of parts, zero at padding; `rows` are the examples' rows in the concatenated data of the
    stack, None if inputs are augmented; `epoch` is each client's current epoch.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None
    sizes: np.ndarray
    drawn: Tree
    rows: Tensor | None
    epoch: Tensor

    def with_other_padding(self) -> StackedBatch:
        """The same with the last example as padding."""
        assert self.mask is not None, "there is no padding"
        real = self.mask.bool()
        last = torch.from_numpy(self.sizes - 1).to(real.device)
        each = torch.arange(len(last), device=real.device)

        def other(values: Tensor) -> Tensor:
            keep = real.view(*real.shape, *[1] * (values.dim() - 2))
            return torch.where(keep, values, values[each, last].unsqueeze(1))

        rows = None if self.rows is None else other(self.rows)
        return self._replace(inputs=other(self.inputs), targets=other(self.targets), rows=rows)


class Source(Protocol):
    """The source of a step's inputs and labels."""

    def take(self, step: int, active: int, width: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs and labels of the first `active` clients, padded to `width` examples, and their rows if known."""
        ...


class StackedData:
    """The data of a stack of clients in one round; `clients`, `examples` and `steps` are in the stack's order.

    `secrets` are where private batches and their noise come from.
    """

    def __init__(
        self, job: Job, round: int, stack: StackedClients, secrets: Mapping[int, Secret | None] | None = None
    ) -> None:
        self.clients, self.examples, self.steps = stack.clients, stack.examples, stack.steps
        self.example_counts, self.label_counts = stack.example_counts, stack.label_counts
        self.secrets, self.sizes = secrets or {}, stack.sizes
        self._stack = stack
        self._epochs = job.local.epochs
        self._dtype, self._device = job.model.dtype, job.model.device
        sampled = self._sample(job, round) if job.local.sampling == "poisson" else None
        if sampled is not None:
            self.sizes = self.sizes.copy()
        for row, found in enumerate(sampled or ()):
            self.sizes[row, : self.steps[row]] = list(map(len, found))
        draws = bool(job.algorithm.with_capability(StepDraws))
        self._draws = [Draws(job.algorithm, job.model, job.seed, round, client) for client in self.clients if draws]
        whole, inputs = stack.whole, stack.inputs
        self._source: Source = (
            Gathered(inputs, stack.targets, self._rows(job, round, sampled))
            if inputs is not None
            else Augmented(job, round, self.clients, whole.split(self.examples) if whole else None, self.secrets)
        )

    def _sample(self, job: Job, round: int) -> list[list[np.ndarray]]:
        """The rows of every client's Poisson batches, the same as for each client alone."""
        drawn: list[list[np.ndarray]] = []
        for client, size in zip(self.clients, self.examples, strict=True):
            batches = PoissonBatches(job.local, size, (job.seed, round, client), self.secrets.get(client))
            drawn.append([batches.rows(step) for step in range(batches.steps)])
        return drawn

    def _rows(self, job: Job, round: int, sampled: list[list[np.ndarray]] | None) -> np.ndarray:
        """(clients, steps, batch): the rows of every batch in the concatenated data of the clients."""
        if sampled is None:
            return self._stack.rows_in(shuffles(job.seed, round, self.clients, self.examples, self._epochs))
        rows = np.broadcast_to(self._stack.starts, (*self.sizes.shape, max(int(self.sizes.max()), 1))).copy()
        for own, batches in zip(rows, sampled, strict=True):
            for step, found in enumerate(batches):
                own[step, : len(found)] += found
        return rows

    def __iter__(self) -> Iterator[StackedBatch]:
        for step, active in enumerate(self._stack.active):
            sizes = self.sizes[:active, step]
            width = max(int(sizes.max()), 1)  # Poisson batches may all be empty
            inputs, targets, rows = self._source.take(step, active, width)
            mask, drawn = self._mask(sizes, width), self._drawn(sizes, width)
            yield StackedBatch(inputs, targets, mask, sizes, drawn, rows, self._stack.epoch[:active, step])

    @property
    def pads(self) -> bool:
        """Whether any batch is padded."""
        return bool(((self.sizes > 0) & (self.sizes < self.sizes.max(axis=0))).any())

    @property
    def repeats(self) -> bool:
        """Whether identical inputs occur more than once."""
        return self._epochs > 1 and isinstance(self._source, Gathered)

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows and inputs of all examples once, a few batches of every client at a time."""
        assert isinstance(self._source, Gathered), "inputs are augmented"
        sizes = np.array(self.examples)
        width = min(LOOKUP_BATCHES * int(self.sizes.max()), int(sizes.max()))
        starts = self._stack.starts[:, :, 0]
        for begin in range(0, int(sizes.max()), width):
            active = int(np.flatnonzero(sizes > begin)[-1]) + 1
            index = begin + np.arange(width)
            rows = starts + np.where(index < sizes[:, None], index, 0)
            yield self._source.select(torch.from_numpy(rows[:active]))

    def _drawn(self, sizes: np.ndarray, width: int) -> Tree:
        """The random numbers of every client's parts, the same as for each client alone."""
        counts = np.maximum(sizes, 1).tolist()  # an empty batch has one masked example
        each = [tree.flatten(draws.step(size)) for draws, size in zip(self._draws, counts, strict=False)]
        paths = each[0] if each else {}
        return tree.unflatten({path: torch.stack([_pad_zeros(own[path], width) for own in each]) for path in paths})

    def _mask(self, sizes: np.ndarray, width: int) -> Tensor | None:
        if sizes.min() == width:
            return None
        real = torch.from_numpy(np.arange(width) < sizes[:, None])
        return real.to(self._device, self._dtype)


class Gathered:
    """Inputs without randomness: the concatenated examples of all clients, selected by row at each step."""

    def __init__(self, inputs: Tensor, targets: Tensor, rows: np.ndarray) -> None:
        self._inputs, self._targets = inputs, targets
        self._rows = torch.from_numpy(rows).to(inputs.device)

    def take(self, step: int, active: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        rows, inputs = self.select(self._rows[:active, step, :width])
        return inputs, self._targets.index_select(0, rows.reshape(-1)).view(rows.shape), rows

    def select(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows on the device, and their inputs."""
        rows = rows.to(self._inputs.device)
        inputs = self._inputs.index_select(0, rows.reshape(-1))
        return rows, inputs.view(*rows.shape, *inputs.shape[1:])


class Augmented:
    """Augmented inputs: every client's own batches, the same as for the client alone."""

    def __init__(
        self,
        job: Job,
        round: int,
        clients: Sequence[int],
        own: Sequence[Examples] | None,
        secrets: Mapping[int, Secret | None],
    ) -> None:
        own = own or [job.clients[client] for client in clients]
        self._batches = [
            iter(
                LocalData(
                    one, job.model, job.local, job.classes_of(client), job.seed, round, client, secrets.get(client)
                )
            )
            for client, one in zip(clients, own, strict=True)
        ]

    def take(self, step: int, active: int, width: int) -> tuple[Tensor, Tensor, None]:
        batches: list[Batch] = [next(batch) for batch in self._batches[:active]]
        inputs = torch.stack([_pad_first(batch.inputs, width) for batch in batches])
        return inputs, torch.stack([_pad_first(batch.targets, width) for batch in batches]), None


def _pad_first(values: Tensor, width: int) -> Tensor:
    """Pad to the width with the first example."""
    missing = width - len(values)
    return torch.cat([values, values[:1].expand(missing, *values.shape[1:])]) if missing else values


def _pad_zeros(values: Tensor, width: int) -> Tensor:
    """Pad to the width with zeros."""
    return torch.cat([values, values.new_zeros(width - len(values), *values.shape[1:])])
