"""The clients' training examples: views of one pooled data set, or separate tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

import numpy as np
import torch
from torch import Tensor

from fedra.core.batches import Examples, InputTransform
from fedra.core.ownership import Owners


class Rows(Sequence[Tensor]):
    """Each client's rows of a pool, as views of one tensor, because many small tensors need more memory."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self._all = torch.from_numpy(np.concatenate(parts))
        self._ends = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, client: int) -> Tensor: ...

    @overload
    def __getitem__(self, client: slice) -> list[Tensor]: ...

    def __getitem__(self, client: int | slice) -> Tensor | list[Tensor]:
        selected = range(len(self))[client]
        if isinstance(selected, range):
            return [self[index] for index in selected]
        return self._all[self._ends[selected] : self._ends[selected + 1]]


@dataclass(frozen=True)
class PooledClients:
    """Clients that share one pool of examples and store only their rows, so memory does not grow with clients."""

    pool: Examples
    rows: Sequence[Tensor]

    @classmethod
    def split(
        cls, inputs: Tensor, targets: Tensor, transform: InputTransform, parts: Sequence[np.ndarray]
    ) -> PooledClients:
        """Split a pool by a partition."""
        return cls(Examples(inputs, targets, transform), Rows(parts))

    def __len__(self) -> int:
        return len(self.rows)

    def size(self, client: int) -> int:
        return self._sizes[client]

    @cached_property
    def _sizes(self) -> list[int]:
        return list(map(len, self.rows))

    def __getitem__(self, client: int) -> Examples:
        return self._examples(self.rows[client])

    def labels(self, client: int) -> Tensor:
        """Return the labels of a client without copying its inputs."""
        return self.pool.targets[self.rows[client]]

    def joined(self, clients: Sequence[int]) -> Examples:
        return self._examples(torch.cat([self.rows[client] for client in clients]))

    def _examples(self, rows: Tensor) -> Examples:
        return Examples(self.pool.inputs[rows], self.pool.targets[rows], self.pool.transform)

    def tensors(self) -> Iterable[Tensor]:
        return (self.pool.inputs, self.pool.targets)

    def together(self) -> SeparateClients:
        """Return one client with the examples of all clients, each example once and in the order of the pool."""
        rows = torch.unique(torch.cat(list(self.rows)))
        if len(rows) == len(self.pool):
            return SeparateClients([self.pool])
        return SeparateClients([self._examples(rows)])


@dataclass(frozen=True)
class PerClientTransform:
    """Transform of pooled examples, given by row, that applies each client's own transform."""

    examples: tuple[Examples, ...]

    @property
    def deterministic(self) -> bool:
        return all(own.transform.deterministic for own in self.examples)

    def prepare(self, inputs: Tensor) -> Tensor:
        return self._joined(inputs, lambda own, rows: own.transform.prepare(own.inputs[rows]))

    def batch(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return self._joined(inputs, lambda own, rows: own.transform.batch(own.inputs[rows], generator))

    def _joined(self, rows: Tensor, prepare: Callable[[Examples, Tensor], Tensor]) -> Tensor:
        ends = torch.tensor([len(own) for own in self.examples]).cumsum(0)
        owners = torch.searchsorted(ends, rows.cpu(), right=True)
        pieces, all_positions = [], []
        for client in torch.unique(owners).tolist():
            positions = (owners == client).nonzero()[:, 0]
            own = self.examples[client]
            pieces.append(prepare(own, rows.cpu()[positions] - (int(ends[client]) - len(own))).to(rows.device))
            all_positions.append(positions)
        return torch.cat(pieces)[torch.cat(all_positions).argsort().to(rows.device)]


@dataclass(frozen=True)
class SeparateClients:
    """Clients with separate tensors."""

    examples: Sequence[Examples]

    def __len__(self) -> int:
        return len(self.examples)

    def size(self, client: int) -> int:
        return self._sizes[client]

    @cached_property
    def _sizes(self) -> list[int]:
        return list(map(len, self.examples))

    def __getitem__(self, client: int) -> Examples:
        return self.examples[client]

    def labels(self, client: int) -> Tensor:
        """Return the labels of a client."""
        return self.examples[client].targets

    def joined(self, clients: Sequence[int]) -> Examples | None:
        own = [self.examples[client] for client in clients]
        transform = own[0].transform
        if any(one.transform is not transform and one.transform != transform for one in own):
            return None
        inputs, targets = torch.cat([one.inputs for one in own]), torch.cat([one.targets for one in own])
        return Examples(inputs, targets, transform)

    def tensors(self) -> Iterable[Tensor]:
        for own in self.examples:
            yield from (own.inputs, own.targets)

    def together(self) -> SeparateClients:
        """Return one client with the examples of all clients, in client order."""
        targets = torch.cat([own.targets for own in self.examples])
        first = self.examples[0].transform
        if all(own.transform is first or own.transform == first for own in self.examples):
            return SeparateClients([Examples(torch.cat([own.inputs for own in self.examples]), targets, first)])
        return SeparateClients(
            [Examples(torch.arange(len(targets)), targets, PerClientTransform(tuple(self.examples)))]
        )


@dataclass(frozen=True)
class LocalLabels:
    """Clients whose labels index their own classes; `owners` maps these to global classes."""

    clients: PooledClients | SeparateClients
    owners: Owners

    @classmethod
    def of(cls, clients: PooledClients | SeparateClients, classes: int) -> LocalLabels:
        """Derive each client's classes from its labels."""
        return cls(clients, Owners([torch.unique(clients.labels(c)) for c in range(len(clients))], classes))

    def __len__(self) -> int:
        return len(self.clients)

    def size(self, client: int) -> int:
        return self.clients.size(client)

    def __getitem__(self, client: int) -> Examples:
        own = self.clients[client]
        return replace(own, targets=_local_labels(own, self.owners.holdings[client]))

    def joined(self, clients: Sequence[int]) -> Examples | None:
        whole = self.clients.joined(clients)
        if whole is None:
            return None
        pieces = whole.split(list(map(self.size, clients)))
        holdings = (self.owners.holdings[client] for client in clients)
        own = [_local_labels(piece, held) for held, piece in zip(holdings, pieces, strict=True)]
        return replace(whole, targets=torch.cat(own))

    def tensors(self) -> Iterable[Tensor]:
        return self.clients.tensors()


def _local_labels(own: Examples, held: Tensor) -> Tensor:
    """Return the labels as positions in the client's classes; torch warns of targets that are a column of a table."""
    return torch.searchsorted(held, own.targets.contiguous())
