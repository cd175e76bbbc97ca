"""Clients as the core sees them: views of one pooled data set, or people's own tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedra.core.batches import Examples, Transform


@dataclass(frozen=True)
class PooledClients:
    """Clients that share one pool of examples, each by its rows: memory is the pool's, whatever their number."""

    pool: Examples
    rows: Sequence[Tensor]

    @classmethod
    def split(cls, inputs: Tensor, targets: Tensor, transform: Transform, parts: Sequence[np.ndarray]) -> PooledClients:
        """A pool divided by a partition."""
        return cls(Examples(inputs, targets, transform), [torch.from_numpy(part) for part in parts])

    def __len__(self) -> int:
        return len(self.rows)

    def size(self, client: int) -> int:
        return len(self.rows[client])

    def __getitem__(self, client: int) -> Examples:
        rows = self.rows[client]
        return Examples(self.pool.inputs[rows], self.pool.targets[rows], self.pool.transform)

    def tensors(self) -> Iterable[Tensor]:
        return (self.pool.inputs, self.pool.targets)


@dataclass(frozen=True)
class OwnClients:
    """Clients each with tensors of their own."""

    examples: Sequence[Examples]

    def __len__(self) -> int:
        return len(self.examples)

    def size(self, client: int) -> int:
        return len(self.examples[client])

    def __getitem__(self, client: int) -> Examples:
        return self.examples[client]

    def tensors(self) -> Iterable[Tensor]:
        for own in self.examples:
            yield from (own.inputs, own.targets)
