"""The uploads of several clients as a stack, so they are checked and combined with a few large operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.tree import Params, Tree
from fedra.core.view import Upload
from fedra.errors import ConfigError


class SingleUploads:
    """A fold that needs single uploads."""

    def add_sum(self, total: np.ndarray, clients: int, asked: int) -> None:
        """Refuse a sum over clients."""
        raise ConfigError("a secure sum must be folded by a run with [secure], got a run without it")


@dataclass(frozen=True, kw_only=True)
class Uploads:
    """The uploads of several clients: tensors have a leading client dimension, numbers become sequences.

    Indexing and iterating return single uploads as views.

    Args:
        delta: Changes of the shared parameters.
        buffers: Running statistics.
        examples: Numbers of the clients' examples.
        steps: Numbers of local steps.
        effective_steps: Equivalent numbers of plain SGD steps.
        extras: What parts upload in addition, by part name.
        metrics: Metrics of local training, by name.
        broken_step: For each client the first local step whose loss was not finite, or None.

    Example:
        ```python
        mean_change = {name: value.mean(dim=0) for name, value in uploads.delta.items()}
        ```
    """

    delta: Params
    buffers: Params
    examples: Sequence[int]
    steps: Sequence[int]
    effective_steps: Sequence[float]
    extras: Tree
    metrics: dict[str, list[float]]
    broken_step: Sequence[int | None]

    @classmethod
    def of(cls, upload: Upload) -> Uploads:
        """A stack of one upload.

        Args:
            upload: One client's upload.

        Returns:
            The stack.
        """
        return cls(**_each(upload, lambda value: stack_of_one(value) if isinstance(value, Tensor) else [value]))

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Upload:
        return Upload(**_each(self, lambda values: values[index]))

    def __iter__(self) -> Iterator[Upload]:
        return (self[index] for index in range(len(self)))

    def select(self, indices: Sequence[int]) -> Uploads:
        """A selection of the uploads.

        Args:
            indices: Which uploads, in which order.

        Returns:
            The selection; the stack itself if it is all of them in their own order.
        """
        if are_all(indices, len(self)):
            return self
        rows = torch.tensor(indices, dtype=torch.long)
        return Uploads(
            **_each(self, lambda v: v[rows.to(v.device)] if isinstance(v, Tensor) else [v[index] for index in indices])
        )

    @cached_property
    def update_norms(self) -> list[float]:
        """The Euclidean norm of each client's change."""
        return norms_of(self.delta, len(self))

    @cached_property
    def finite(self) -> list[bool]:
        """Whether all entries of each upload are finite, with few device synchronizations.

        Entries so large that their sum overflows count as not finite.
        """
        tensors = [*self.buffers.values(), *tree.flatten(self.extras).values()]
        if not all(map(math.isfinite, self.update_norms)):  # a change with a finite norm is finite
            tensors += self.delta.values()
        sums = [value.reshape(len(self), -1).sum(dim=1) for value in tensors if value.is_floating_point()]
        if not sums:
            return [True] * len(self)
        found: list[bool] = torch.stack(sums).isfinite().all(dim=0).tolist()
        return found

    @property
    def bytes_each(self) -> int:
        """The size of one upload in bytes."""
        return sum(map(tree.size_in_bytes, (self.delta, self.buffers, self.extras))) // len(self)


def _each(record: Upload | Uploads, function: Callable[[Any], Any]) -> dict[str, Any]:
    """Apply a function to every tensor and number of a record; returns the fields by name."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {n: tree.each(v, function) if isinstance(v, dict) else function(v) for n, v in values.items()}


def are_all(indices: Sequence[int], count: int) -> bool:
    """Whether the indices are those of all `count` rows of a stack, in order."""
    return indices == range(count) or (len(indices) == count and list(indices) == list(range(count)))


def stack_of_one(value: Tensor) -> Tensor:
    """The tensor as a stack of one."""
    return value.unsqueeze(0)


def norms_of(stacks: Params, count: int) -> list[float]:
    """The Euclidean norm of each of the `count` clients' tensors, from stacks of them."""
    if not stacks:
        return [0.0] * count
    lengths = [torch.linalg.vector_norm(value.reshape(count, -1), dim=1) for value in stacks.values()]
    norms: list[float] = torch.linalg.vector_norm(torch.stack(lengths), dim=0).tolist()
    return norms
