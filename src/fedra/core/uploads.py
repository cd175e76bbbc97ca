"""The uploads of several clients as one: a stack is checked and folded by a few large sums, not client by client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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
    figures: Mapping[str, Sequence[float]]
    broken_step: Sequence[int | None]

    @classmethod
    def of(cls, upload: Upload) -> Uploads:
        """A stack of one."""
        return cls(
            delta=tree.each(upload.delta, alone),
            buffers=tree.each(upload.buffers, alone),
            examples=[upload.examples],
            steps=[upload.steps],
            effective_steps=[upload.effective_steps],
            extras=tree.each(upload.extras, alone),
            figures={name: [value] for name, value in upload.figures.items()},
            broken_step=[upload.broken_step],
        )

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place: int) -> Upload:
        return Upload(
            delta=tree.each(self.delta, lambda value: value[place]),
            buffers=tree.each(self.buffers, lambda value: value[place]),
            examples=self.examples[place],
            steps=self.steps[place],
            effective_steps=self.effective_steps[place],
            extras=tree.each(self.extras, lambda value: value[place]),
            figures={name: values[place] for name, values in self.figures.items()},
            broken_step=self.broken_step[place],
        )

    def __iter__(self) -> Iterator[Upload]:
        return (self[place] for place in range(len(self)))

    def picked(self, places: Sequence[int]) -> Uploads:
        """Those at these places, in this order; all in their own order are no copy."""
        if list(places) == list(range(len(self))):
            return self
        rows = torch.tensor(places, dtype=torch.long)

        def chosen(value: Tensor) -> Tensor:
            return value[rows.to(value.device)]

        return Uploads(
            delta=tree.each(self.delta, chosen),
            buffers=tree.each(self.buffers, chosen),
            examples=[self.examples[place] for place in places],
            steps=[self.steps[place] for place in places],
            effective_steps=[self.effective_steps[place] for place in places],
            extras=tree.each(self.extras, chosen),
            figures={name: [values[place] for place in places] for name, values in self.figures.items()},
            broken_step=[self.broken_step[place] for place in places],
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


def alone(value: Tensor) -> Tensor:
    """A stack of one."""
    return value.unsqueeze(0)
