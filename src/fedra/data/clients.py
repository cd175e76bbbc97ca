"""Clients as the core sees them: views of one pooled data set, or people's own tensors."""

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
    """Each client's rows of a pool, cut from one tensor: ten thousand small tensors weigh more than what they hold."""

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
        places = range(len(self))[client]
        if isinstance(places, range):
            return [self[place] for place in places]
        return self._all[self._ends[places] : self._ends[places + 1]]


@dataclass(frozen=True)
class PooledClients:
    """Clients that share one pool of examples, each by its rows: memory is the pool's, whatever their number."""

    pool: Examples
    rows: Sequence[Tensor]

    @classmethod
    def split(
        cls, inputs: Tensor, targets: Tensor, transform: InputTransform, parts: Sequence[np.ndarray]
    ) -> PooledClients:
        """A pool divided by a partition."""
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
        """The client's labels, without its inputs."""
        return self.pool.targets[self.rows[client]]

    def joined(self, clients: Sequence[int]) -> Examples:
        return self._examples(torch.cat([self.rows[client] for client in clients]))

    def _examples(self, rows: Tensor) -> Examples:
        return Examples(self.pool.inputs[rows], self.pool.targets[rows], self.pool.transform)

    def tensors(self) -> Iterable[Tensor]:
        return (self.pool.inputs, self.pool.targets)

    def together(self) -> OwnClients:
        """One client that holds what any client holds, each example once and in the pool's own order."""
        rows = torch.unique(torch.cat(list(self.rows)))
        if len(rows) == len(self.pool):
            return OwnClients([self.pool])
        return OwnClients([self._examples(rows)])


@dataclass(frozen=True)
class EachItsOwn:
    """Prepares a pool of clients' examples, given by their rows, each as its client does."""

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
        pieces, places = [], []
        for client in torch.unique(owners).tolist():
            place = (owners == client).nonzero()[:, 0]
            own = self.examples[client]
            pieces.append(prepare(own, rows.cpu()[place] - (int(ends[client]) - len(own))).to(rows.device))
            places.append(place)
        return torch.cat(pieces)[torch.cat(places).argsort().to(rows.device)]


@dataclass(frozen=True)
class OwnClients:
    """Clients each with tensors of their own."""

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
        """The client's labels."""
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

    def together(self) -> OwnClients:
        """One client that holds what all clients hold, one client's examples after the other's."""
        targets = torch.cat([own.targets for own in self.examples])
        first = self.examples[0].transform
        if all(own.transform is first or own.transform == first for own in self.examples):
            return OwnClients([Examples(torch.cat([own.inputs for own in self.examples]), targets, first)])
        return OwnClients([Examples(torch.arange(len(targets)), targets, EachItsOwn(tuple(self.examples)))])


@dataclass(frozen=True)
class LocalLabels:
    """Clients that number their own classes from zero; which classes of the federation those are, `owners` knows."""

    clients: PooledClients | OwnClients
    owners: Owners

    @classmethod
    def of(cls, clients: PooledClients | OwnClients, classes: int) -> LocalLabels:
        """The clients with the classes that each of them holds."""
        return cls(clients, Owners([torch.unique(clients.labels(c)) for c in range(len(clients))], classes))

    def __len__(self) -> int:
        return len(self.clients)

    def size(self, client: int) -> int:
        return self.clients.size(client)

    def __getitem__(self, client: int) -> Examples:
        own = self.clients[client]
        return replace(own, targets=torch.searchsorted(self.owners.holdings[client], own.targets))

    def joined(self, clients: Sequence[int]) -> Examples | None:
        whole = self.clients.joined(clients)
        if whole is None:
            return None
        pieces = whole.split(list(map(self.size, clients)))
        holdings = (self.owners.holdings[client] for client in clients)
        own = [torch.searchsorted(h, piece.targets) for h, piece in zip(holdings, pieces, strict=True)]
        return replace(whole, targets=torch.cat(own))

    def tensors(self) -> Iterable[Tensor]:
        return self.clients.tensors()
