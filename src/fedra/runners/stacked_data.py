"""The batches of several clients side by side: (clients, batch, ...), padding marked.

Clients stand in the order of their numbers of steps, the longest first, so that those still at work at any step
are the first `active` ones. Padding repeats an example of the client's own, whose label and inputs are valid
whatever a term does with them; the mask takes it out of every mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedra.core.batches import Examples, LocalData, orders, refuse_empty
from fedra.core.job import Job
from fedra.core.view import Batch


class StackedBatch(NamedTuple):
    """One step's batches; `sizes` are the clients' numbers of examples in them, `mask` None without padding."""

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None
    sizes: np.ndarray


class Source(Protocol):
    """Where a step's inputs and labels come from."""

    def take(self, step: int, active: int, width: int) -> tuple[Tensor, Tensor]:
        """The batches of the first `active` clients, padded to `width` examples."""
        ...


class StackedData:
    """The data of some clients in one round; `clients`, `examples` and `steps` are in the stack's order."""

    def __init__(self, job: Job, round: int, clients: Sequence[int]) -> None:
        schedule = job.local.schedule
        self._dtype, self._device = job.model.dtype, job.model.device
        by_client = {client: job.clients.size(client) for client in clients}
        for client, size in by_client.items():
            refuse_empty(client, size)
        portions = {size: schedule.portions(size) for size in set(by_client.values())}
        self.clients = sorted(clients, key=lambda client: -len(portions[by_client[client]]))
        self.examples = [by_client[client] for client in self.clients]
        self.steps = [schedule.epochs * len(portions[size]) for size in self.examples]
        self.sizes = np.zeros((len(self.clients), self.steps[0]), dtype=np.int64)
        lengths = {
            size: np.tile([end - start for start, end in cuts], schedule.epochs) for size, cuts in portions.items()
        }
        for row, size in enumerate(self.examples):
            self.sizes[row, : self.steps[row]] = lengths[size]
        own = [job.clients[client] for client in self.clients]
        self.label_counts = _label_counts([one.targets for one in own], job.classes).to(self._device)
        self._active = (self.sizes > 0).sum(axis=0).tolist()
        self._source: Source = (
            Gathered(job, round, self.clients, own, self.sizes)
            if _deterministic(own)
            else Drawn(job, round, self.clients, own)
        )

    def __iter__(self) -> Iterator[StackedBatch]:
        for step, active in enumerate(self._active):
            sizes = self.sizes[:active, step]
            width = int(sizes.max())
            inputs, targets = self._source.take(step, active, width)
            yield StackedBatch(inputs, targets, self._mask(sizes, width), sizes)

    def _mask(self, sizes: np.ndarray, width: int) -> Tensor | None:
        if sizes.min() == width:
            return None
        real = torch.from_numpy(np.arange(width) < sizes[:, None])
        return real.to(self._device, self._dtype)


class Gathered:
    """Inputs in which nothing is random: all clients' examples one after the other, picked by row each step."""

    def __init__(
        self, job: Job, round: int, clients: Sequence[int], own: Sequence[Examples], sizes: np.ndarray
    ) -> None:
        model = job.model
        inputs = torch.cat([one.inputs for one in own]).to(model.device)
        self._inputs = model.ready(own[0].transform.prepare(inputs))
        self._targets = torch.cat([one.targets for one in own]).to(model.device)
        counts = [len(one) for one in own]
        self._rows = torch.from_numpy(_rows(job, round, clients, counts, sizes)).to(model.device)

    def take(self, step: int, active: int, width: int) -> tuple[Tensor, Tensor]:
        rows = self._rows[:active, step, :width]
        flat = rows.reshape(-1)
        inputs = self._inputs.index_select(0, flat)
        return inputs.view(*rows.shape, *inputs.shape[1:]), self._targets.index_select(0, flat).view(rows.shape)


class Drawn:
    """Inputs that are drawn at random: every client's own batches, as it would draw them alone."""

    def __init__(self, job: Job, round: int, clients: Sequence[int], own: Sequence[Examples]) -> None:
        self._batches = [
            iter(LocalData(one, job.model, job.local.schedule, job.classes, job.seed, round, client))
            for client, one in zip(clients, own, strict=True)
        ]

    def take(self, step: int, active: int, width: int) -> tuple[Tensor, Tensor]:
        batches: list[Batch] = [next(batch) for batch in self._batches[:active]]
        inputs = torch.stack([_padded(batch.inputs, width) for batch in batches])
        return inputs, torch.stack([_padded(batch.targets, width) for batch in batches])


def _deterministic(own: Sequence[Examples]) -> bool:
    """Whether all clients prepare their inputs alike, with nothing random."""
    transform = own[0].transform
    return transform.deterministic and all(e.transform is transform or e.transform == transform for e in own)


def _rows(job: Job, round: int, clients: Sequence[int], counts: Sequence[int], sizes: np.ndarray) -> np.ndarray:
    """(clients, steps, batch): the rows of every batch in the clients' data one after the other."""
    schedule, spare = job.local.schedule, torch.Generator()
    used = (sizes.sum(axis=1) // schedule.epochs).tolist()
    shuffled = [
        order if length == count else order[:length]
        for client, count, length in zip(clients, counts, used, strict=True)
        for order in orders(schedule, count, job.seed, round, client, spare)
    ]
    starts = np.cumsum([0, *counts[:-1]])
    real = np.arange(sizes.max()) < sizes[:, :, None]
    rows = np.broadcast_to(starts[:, None, None], real.shape).copy()
    rows[real] += torch.cat(shuffled).numpy()
    return rows


def _padded(values: Tensor, width: int) -> Tensor:
    """The first example repeated up to the width."""
    missing = width - len(values)
    return torch.cat([values, values[:1].expand(missing, *values.shape[1:])]) if missing else values


def _label_counts(targets: Sequence[Tensor], classes: int) -> Tensor:
    """(clients, classes): how often each client holds each class."""
    lengths = torch.tensor([len(one) for one in targets])
    owner = torch.arange(len(targets)).repeat_interleave(lengths)
    flat = owner * classes + torch.cat(list(targets)).cpu()
    return torch.bincount(flat, minlength=len(targets) * classes).view(len(targets), classes)
