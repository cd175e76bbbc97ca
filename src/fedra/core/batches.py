"""A client's examples and the order in which it looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedra.core.model import Model
from fedra.core.random import generator, key
from fedra.core.view import Batch
from fedra.errors import DataError


class Transform(Protocol):
    """How raw inputs become what the model sees."""

    @property
    def deterministic(self) -> bool:
        """Whether `batch` draws nothing at random."""
        ...

    def prepare(self, inputs: Tensor) -> Tensor:
        """Inputs as floating-point numbers, nothing random."""
        ...

    def batch(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """A training batch: augmented, then prepared."""
        ...


@dataclass(frozen=True)
class AsIs:
    """Inputs that are ready for the model."""

    deterministic: bool = True

    def prepare(self, inputs: Tensor) -> Tensor:
        return inputs

    def batch(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return inputs


@dataclass(frozen=True)
class Examples:
    """Raw inputs, their labels, and how to prepare them."""

    inputs: Tensor
    targets: Tensor
    transform: Transform = field(default_factory=AsIs)

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Schedule:
    """How often and in what portions a client goes over its data; `batch` None is all of it at once."""

    epochs: int = 1
    batch: int | None = 50
    drop_last: bool = False

    def portions(self, examples: int) -> list[tuple[int, int]]:
        """Start and end of each batch of an epoch; with `drop_last` an incomplete one goes, unless it is the only."""
        size = self.batch or examples
        cuts = [(start, min(start + size, examples)) for start in range(0, examples, size)]
        if self.drop_last and len(cuts) > 1 and cuts[-1][1] - cuts[-1][0] < size:
            cuts.pop()
        return cuts

    def steps(self, examples: int) -> int:
        """The number of local steps of a client with that many examples."""
        return self.epochs * len(self.portions(examples))


def refuse_empty(client: int, examples: int) -> None:
    """A client without examples cannot take part."""
    if examples == 0:
        raise DataError(f"client {client} has no examples: use fewer clients or another partition")


def orders(
    schedule: Schedule, examples: int, seed: int, round: int, client: int, spare: torch.Generator | None = None
) -> Iterator[Tensor]:
    """The order in which a client goes over its examples, epoch by epoch; `spare` is seeded anew in place of a
    fresh generator.
    """
    shuffle = (spare or torch.Generator()).manual_seed(key(seed, "shuffle", round, client))
    for _ in range(schedule.epochs):
        yield torch.randperm(examples, generator=shuffle)


class LocalData:
    """One client's data in one round: made once, shuffled by index, augmented on whole batches.

    `prepared` holds all inputs ready for the model when nothing is drawn at random; else None.
    """

    def __init__(
        self,
        examples: Examples,
        model: Model,
        schedule: Schedule,
        classes: int,
        seed: int,
        round: int,
        client: int,
    ) -> None:
        refuse_empty(client, len(examples))
        self._examples = examples
        self._model = model
        self._schedule = schedule
        self._where = (seed, round, client)
        self.targets = examples.targets.to(model.device)
        self.label_counts = torch.bincount(self.targets, minlength=classes)
        self.prepared: Tensor | None = None
        if examples.transform.deterministic:
            self.prepared = model.ready(examples.transform.prepare(examples.inputs.to(model.device)))

    def __len__(self) -> int:
        return len(self._examples)

    def __iter__(self) -> Iterator[Batch]:
        seed, round, client = self._where
        augment = generator(seed, "augment", round, client)
        for rows in orders(self._schedule, len(self), seed, round, client):
            for start, end in self._schedule.portions(len(self)):
                yield self._batch(rows[start:end], augment)

    def _batch(self, rows: Tensor, augment: torch.Generator) -> Batch:
        on_device = rows.to(self.targets.device)
        targets = self.targets[on_device]
        if self.prepared is not None:
            return Batch(self._model.format(self.prepared[on_device]), targets, on_device)
        raw = self._examples.inputs[rows].to(self._model.device, non_blocking=True)
        return Batch(self._model.ready(self._examples.transform.batch(raw, augment)), targets)
