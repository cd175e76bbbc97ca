"""The uploads of several clients as one: a stack is checked and folded by a few large sums, not client by client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.tree import Params, Tree
from fedra.core.view import Upload


@dataclass(frozen=True, kw_only=True)
class Uploads:
    """Uploads side by side: every tensor has the clients in front, every number is given once per client.

    The fields are those of `Upload`; indexing gives one client's, as views.
    """

    delta: Params
    buffers: Params
    examples: Sequence[int]
    steps: Sequence[int]
    effective_steps: Sequence[float]
    extras: Tree
    figures: dict[str, list[float]]
    broken_step: Sequence[int | None]

    @classmethod
    def of(cls, upload: Upload) -> Uploads:
        """A stack of one."""
        return cls(**_each(upload, lambda value: alone(value) if isinstance(value, Tensor) else [value]))

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place: int) -> Upload:
        return Upload(**_each(self, lambda values: values[place]))

    def __iter__(self) -> Iterator[Upload]:
        return (self[place] for place in range(len(self)))

    def picked(self, places: Sequence[int]) -> Uploads:
        """Those at these places, in this order; all in their own order are no copy."""
        if list(places) == list(range(len(self))):
            return self
        rows = torch.tensor(places, dtype=torch.long)
        return Uploads(
            **_each(self, lambda v: v[rows.to(v.device)] if isinstance(v, Tensor) else [v[place] for place in places])
        )

    @cached_property
    def finite(self) -> list[bool]:
        """Whether all numbers of each upload are finite, by one sum per tensor and one look at the device.

        Entries so large that their sum overflows count as not finite too.
        """
        tensors = [*self.delta.values(), *self.buffers.values(), *tree.flatten(self.extras).values()]
        sums = [value.reshape(len(self), -1).sum(dim=1) for value in tensors if value.is_floating_point()]
        if not sums:
            return [True] * len(self)
        found: list[bool] = torch.stack(sums).isfinite().all(dim=0).tolist()
        return found

    @property
    def bytes_each(self) -> int:
        """The bytes that one of them would take on the wire."""
        return sum(map(tree.size_in_bytes, (self.delta, self.buffers, self.extras))) // len(self)


def _each(record: Upload | Uploads, function: Callable[[Any], Any]) -> dict[str, Any]:
    """The function of every value of a record, tensor by tensor and figure by figure, by the record's fields."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {n: tree.each(v, function) if isinstance(v, dict) else function(v) for n, v in values.items()}


def alone(value: Tensor) -> Tensor:
    """A stack of one."""
    return value.unsqueeze(0)
