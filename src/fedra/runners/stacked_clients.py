"""What the clients of a stack have in every round: their order, their batches, and their concatenated examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedra.core.batches import check_labels, check_not_empty
from fedra.core.job import Job


class StackedClients:
    """The clients of a stack, which a later round with the same clients uses again.

    Clients are sorted by their number of steps, most first; `clients`, `examples` and `steps` are in this order, and
    `requested` in that of the cohort. `sizes` (clients, steps) are the numbers of examples of their batches, `epoch`
    the epoch of each step, `active` the number of clients that take it. `whole` is None if the clients' transforms
    differ; `inputs` are prepared, or None if they are augmented.
    """

    def __init__(self, job: Job, requested: Sequence[int]) -> None:
        self.requested = list(requested)
        self._local, device = job.local, job.model.device
        counts = np.fromiter(map(job.clients.size, requested), np.int64, len(requested))
        check_not_empty(requested[int(counts.argmin())], int(counts.min()))
        different, kind = np.unique(counts, return_inverse=True)  # clients of one size have the same batches
        lengths = [[end - start for start, end in job.local.batch_ranges(size)] for size in different.tolist()]
        steps = job.local.epochs * np.array(list(map(len, lengths)))[kind]
        order = np.argsort(-steps, kind="stable")
        self.clients: list[int] = np.asarray(requested)[order].tolist()
        self.examples: list[int] = counts[order].tolist()
        self.example_counts = torch.from_numpy(counts[order]).to(device, job.model.dtype)
        self.steps: list[int] = steps[order].tolist()
        batches = np.zeros((len(lengths), self.steps[0]), dtype=np.int64)
        for row, own in zip(batches, lengths, strict=True):
            row[: job.local.epochs * len(own)] = own * job.local.epochs
        self.sizes = batches[kind[order]]
        numbers, own_steps = np.arange(self.steps[0]), steps[order][:, None]
        self.epoch = torch.from_numpy(numbers // (own_steps // job.local.epochs)).to(device)
        self.active: list[int] = (own_steps > numbers).sum(axis=0).tolist()
        self.whole = job.clients.joined(self.clients)
        targets = self.whole.targets if self.whole else torch.cat([job.clients[c].targets for c in self.clients])
        self.targets = targets.to(device)
        classes = job.classes if job.owners is None else max(map(job.classes_of, self.clients))
        self.label_counts = _label_counts(self.clients, self.examples, targets, classes).to(device)
        self.inputs: Tensor | None = None
        if self.whole and self.whole.transform.deterministic:
            self.inputs = job.model.ready(self.whole.transform.prepare(self.whole.inputs.to(device)))

    @property
    def nbytes(self) -> int:
        """The bytes of all inputs, raw and prepared, and of the batches' places."""
        raw = 0 if self.whole is None else self.whole.inputs.nbytes
        return raw + (0 if self.inputs is None else self.inputs.nbytes) + self.sizes.nbytes * int(self.sizes.max())

    @cached_property
    def starts(self) -> np.ndarray:
        """(clients, 1, 1): the row of each client's first example in the concatenated examples."""
        return np.cumsum([0, *self.examples[:-1]])[:, None, None]

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Where the orders of all epochs have the examples of each batch, and which of them are real, not padding."""
        own_steps = (self.sizes > 0).sum(axis=1, keepdims=True)
        epoch, batch = np.divmod(np.arange(self.sizes.shape[1]), own_steps // self._local.epochs)
        begin = epoch * sum(self.examples) + self.starts[:, :, 0] + batch * (self._local.batch or 0)
        slots = np.arange(self.sizes.max())
        places, real = begin[:, :, None] + slots, slots < self.sizes[:, :, None]
        return (places, None) if real.all() else (places[real], real)

    def rows_in(self, orders: np.ndarray) -> np.ndarray:
        """(clients, steps, batch): the rows of every batch, from the clients' orders (epochs, all examples)."""
        places, real = self._places
        found: np.ndarray = orders.reshape(-1).take(places)
        if real is None:
            found += self.starts
            return found
        rows = np.broadcast_to(self.starts, real.shape).copy()
        rows[real] += found
        return rows


def _label_counts(clients: Sequence[int], sizes: Sequence[int], targets: Tensor, classes: int) -> Tensor:
    """(clients, classes): each client's number of examples per class; `targets` are the concatenated labels."""
    owner = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
    labels = targets.cpu()
    for index in owner[(labels < 0) | (labels >= classes)].tolist():
        check_labels(clients[index], labels[owner == index], classes)
    return torch.bincount(owner * classes + labels, minlength=len(sizes) * classes).view(len(sizes), classes)
