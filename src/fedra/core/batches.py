"""A client's examples, and the batches that it trains on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedra.core.deferred import DeferredInputs, read_ahead
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model
from fedra.core.poisson_batches import PoissonBatches
from fedra.core.random import generator, shuffles
from fedra.core.secret_numbers import Secret
from fedra.core.transfer import to_device
from fedra.core.view import Batch
from fedra.errors import DataError

AHEAD = 2**30
"""Bytes of a client's inputs that are moved to the device and prepared before the first step; larger data are moved
batch by batch.
"""

EPOCHS_AHEAD = 16
"""Epochs whose order of examples is computed at once."""

CACHE_BYTES = 2**27
"""Bytes of prepared inputs that a process caches for evaluation, or for a stack: the test set of CIFAR-10 fits."""


class InputTransform(Protocol):
    """How raw inputs become model inputs."""

    @property
    def deterministic(self) -> bool:
        """Whether `batch` uses no randomness."""
        ...

    def prepare(self, inputs: Tensor) -> Tensor:
        """Inputs as floating-point numbers, without randomness."""
        ...

    def batch(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """A training batch, augmented and prepared."""
        ...


@dataclass(frozen=True)
class AsIs:
    """The identity transform, for inputs that are ready for the model."""

    deterministic: bool = True

    def prepare(self, inputs: Tensor) -> Tensor:
        return inputs

    def batch(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return inputs


@dataclass(frozen=True)
class Examples:
    """Raw inputs, their labels, and how to prepare them.

    Args:
        inputs: Tensor (N, ...).
        targets: Labels (N,), integers from 0.
        transform: How raw inputs become model inputs; by default they are used unchanged.

    Example:
        ```python
        examples = Examples(torch.randn(100, 784), torch.randint(0, 10, (100,)))
        len(examples)  # 100
        ```
    """

    inputs: Tensor
    targets: Tensor
    transform: InputTransform = field(default_factory=AsIs)

    def __len__(self) -> int:
        return len(self.targets)

    def ready(self, model: Model, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Prepared inputs and labels from `start` to `end`, on the model's device.

        Args:
            model: The model that will read them.
            start: First example.
            end: One past the last example.

        Returns:
            Inputs and labels.
        """
        raw = to_device(self.inputs[start:end], model.device)
        return model.ready(self.transform.prepare(raw)), to_device(self.targets[start:end], model.device)

    def kept(self) -> CachedExamples:
        """The same examples with cached batches, for a test set that is evaluated repeatedly."""
        return CachedExamples(self.inputs, self.targets, self.transform)

    def split(self, sizes: Sequence[int]) -> list[Examples]:
        """Consecutive groups of these sizes, as views.

        Args:
            sizes: Number of examples in each group; must sum to the number of examples.

        Returns:
            One `Examples` per size.
        """
        pieces = zip(torch.split(self.inputs, list(sizes)), torch.split(self.targets, list(sizes)), strict=True)
        return [Examples(inputs, targets, self.transform) for inputs, targets in pieces]


@dataclass(frozen=True)
class CachedExamples(Examples):
    """Examples whose prepared batches are cached, up to CACHE_BYTES."""

    _cache: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def ready(self, model: Model, start: int, end: int) -> tuple[Tensor, Tensor]:
        key = (start, end, model.device, model.dtype, model.channels_last)
        if key in self._cache:
            return self._cache[key]
        batch = super().ready(model, start, end)
        if sum(value.nbytes for pair in (*self._cache.values(), batch) for value in pair) <= CACHE_BYTES:
            self._cache[key] = batch
        return batch


def check_not_empty(client: int, examples: int) -> None:
    """Raise if a client has no examples."""
    if examples == 0:
        raise DataError(
            f"every client must have at least one example, got none for client {client}: use fewer clients or "
            "another partition"
        )


def check_labels(client: int, targets: Tensor, classes: int) -> None:
    """Raise if a label is out of range: inside a loss it would fail obscurely, or not at all."""
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise DataError(
            f"labels must be between 0 and {classes - 1} ({classes} classes), got {wrong} in client {client}: fix the "
            "labels, or use a model with more classes"
        )


class LocalData:
    """One client's data in one round: shuffled by index, augmented a batch at a time.

    `prepared` holds all inputs ready for the model if the transform is deterministic and they are at most `AHEAD`
    bytes, otherwise None. `secret` is where private batches and their noise come from.
    """

    def __init__(
        self,
        examples: Examples,
        model: Model,
        local: LocalTraining,
        classes: int,
        seed: int,
        round: int,
        client: int,
        secret: Secret | None = None,
    ) -> None:
        check_not_empty(client, len(examples))
        check_labels(client, examples.targets, classes)
        self._examples = examples
        self._model = model
        self._local = local
        self.where = (seed, round, client)
        self.secret = secret
        self.targets = to_device(examples.targets, model.device)
        self.label_counts = to_device(torch.bincount(examples.targets, minlength=classes), model.device)
        self._raw = to_device(examples.inputs, model.device) if self._fits(examples.inputs) else examples.inputs
        self.prepared: Tensor | None = None
        if examples.transform.deterministic and examples.inputs.numel() * model.dtype.itemsize <= AHEAD:
            self.prepared = model.ready(examples.transform.prepare(to_device(self._raw, model.device)))

    def __len__(self) -> int:
        return len(self._examples)

    def _fits(self, inputs: Tensor) -> bool:
        """Whether to move all raw inputs at once; deferred ones are read once only if several epochs need them."""
        deferred = isinstance(inputs, DeferredInputs) and self._local.epochs == 1
        return inputs.nbytes <= AHEAD and not deferred

    def __iter__(self) -> Iterator[Batch]:
        seed, round, client = self.where
        augment = generator(seed, "augment", round, client)
        if self._local.sampling == "poisson":
            yield from self._sampled(augment)
            return
        for epoch, order in self._orders(seed, round, client):
            rows = to_device(order, self._model.device)
            raw_rows = rows if self._raw.device == rows.device else order
            ranges = self._local.batch_ranges(len(self))
            raw = read_ahead(self._raw, (raw_rows[start:end] for start, end in ranges))
            for start, end in ranges:
                yield replace(self._batch(rows[start:end], raw, augment), epoch=epoch)

    def _sampled(self, augment: torch.Generator) -> Iterator[Batch]:
        """Poisson batches; an empty one has one masked example, because not every layer accepts no example."""
        batches = PoissonBatches(self._local, len(self), self.where, self.secret)
        found = [torch.from_numpy(batches.rows(step)) for step in range(batches.steps)]
        orders = [rows if len(rows) else torch.zeros(1, dtype=torch.int64) for rows in found]
        placed = [to_device(rows, self._model.device) for rows in orders]
        raw = read_ahead(self._raw, iter(placed if self._raw.device == self._model.device else orders))
        for step, rows in enumerate(placed):
            mask = None if len(found[step]) else torch.zeros(1, dtype=self._model.dtype, device=self._model.device)
            yield replace(self._batch(rows, raw, augment), epoch=step // batches.steps_per_epoch, mask=mask)

    def _orders(self, seed: int, round: int, client: int) -> Iterator[tuple[int, Tensor]]:
        """The order of every epoch, a few at a time: those of a million epochs would not fit into memory."""
        for start in range(0, self._local.epochs, EPOCHS_AHEAD):
            some = range(start, min(start + EPOCHS_AHEAD, self._local.epochs))
            yield from zip(some, torch.from_numpy(shuffles(seed, round, [client], [len(self)], some)), strict=True)

    def _batch(self, rows: Tensor, raw: Iterator[Tensor], augment: torch.Generator) -> Batch:
        """The batch of these rows, or of the next raw inputs if inputs are not prepared."""
        targets = self.targets[rows]
        if self.prepared is not None:
            return Batch(self._model.format(self.prepared[rows]), targets, rows)
        inputs = to_device(next(raw), self._model.device)
        return Batch(self._model.ready(self._examples.transform.batch(inputs, augment)), targets)
