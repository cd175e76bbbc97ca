"""A client's examples and the order in which it looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedra.core.local_training import LocalTraining
from fedra.core.model import Model
from fedra.core.random import generator, shuffles
from fedra.core.transfer import brought
from fedra.core.view import Batch
from fedra.errors import DataError

AHEAD = 2**30
"""Bytes of a client's inputs that may be brought to the device, and prepared, before the first step; of larger data
every batch goes by itself.
"""

KEPT = 2**27
"""Bytes of ready evaluation batches that a process keeps for the next evaluation: CIFAR-10's test set fits."""


class InputTransform(Protocol):
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
    transform: InputTransform = field(default_factory=AsIs)

    def __len__(self) -> int:
        return len(self.targets)

    def ready(self, model: Model, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels from `start` to `end`, ready for the model."""
        raw = brought(self.inputs[start:end], model.device)
        return model.ready(self.transform.prepare(raw)), brought(self.targets[start:end], model.device)

    def kept(self) -> KeptExamples:
        """The same, for a test set that is looked at again and again."""
        return KeptExamples(self.inputs, self.targets, self.transform)

    def split(self, sizes: Sequence[int]) -> list[Examples]:
        """Examples of that many each, as views."""
        pieces = zip(torch.split(self.inputs, list(sizes)), torch.split(self.targets, list(sizes)), strict=True)
        return [Examples(inputs, targets, self.transform) for inputs, targets in pieces]


@dataclass(frozen=True)
class KeptExamples(Examples):
    """Examples that a model is tested on again and again: batches are made ready once, as far as KEPT goes."""

    _kept: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def ready(self, model: Model, start: int, end: int) -> tuple[Tensor, Tensor]:
        key = (start, end, model.device, model.dtype, model.channels_last)
        if key in self._kept:
            return self._kept[key]
        found = super().ready(model, start, end)
        if sum(value.nbytes for pair in (*self._kept.values(), found) for value in pair) <= KEPT:
            self._kept[key] = found
        return found


def refuse_empty(client: int, examples: int) -> None:
    """A client without examples cannot take part."""
    if examples == 0:
        raise DataError(f"client {client} has no examples: use fewer clients or another partition")


def refuse_labels(client: int, targets: Tensor, classes: int) -> None:
    """Every label names a class: a wrong one would be an error deep inside a loss, or none at all."""
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise DataError(
            f"client {client} has the label {wrong}, but there are {classes} classes, 0 to {classes - 1}: mend its "
            "labels, or use a model with more classes"
        )


class LocalData:
    """One client's data in one round: made once, shuffled by index, augmented on whole batches.

    `prepared` holds all inputs ready for the model when nothing is drawn at random and they are not too large; else
    None.
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
    ) -> None:
        refuse_empty(client, len(examples))
        refuse_labels(client, examples.targets, classes)
        self._examples = examples
        self._model = model
        self._local = local
        self.where = (seed, round, client)
        self.targets = brought(examples.targets, model.device)
        self.label_counts = brought(torch.bincount(examples.targets, minlength=classes), model.device)
        self._raw = brought(examples.inputs, model.device) if examples.inputs.nbytes <= AHEAD else examples.inputs
        self.prepared: Tensor | None = None
        if examples.transform.deterministic and examples.inputs.numel() * model.dtype.itemsize <= AHEAD:
            self.prepared = model.ready(examples.transform.prepare(brought(examples.inputs, model.device)))

    def __len__(self) -> int:
        return len(self._examples)

    def __iter__(self) -> Iterator[Batch]:
        seed, round, client = self.where
        augment = generator(seed, "augment", round, client)
        orders = torch.from_numpy(shuffles(seed, round, [client], [len(self)], self._local.epochs))
        for epoch, order in enumerate(orders):
            rows = brought(order, self._model.device)
            own = rows if self._raw.device == rows.device else order
            for start, end in self._local.portions(len(self)):
                yield replace(self._batch(rows[start:end], own[start:end], augment), epoch=epoch)

    def _batch(self, rows: Tensor, own: Tensor, augment: torch.Generator) -> Batch:
        """The batch of these rows, which lie on the model's device, and `own` beside the raw inputs."""
        targets = self.targets[rows]
        if self.prepared is not None:
            return Batch(self._model.format(self.prepared[rows]), targets, rows)
        raw = brought(self._raw[own], self._model.device)
        return Batch(self._model.ready(self._examples.transform.batch(raw, augment)), targets)
