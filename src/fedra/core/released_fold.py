"""A round on a server that sees sums over clients and nothing else.

Everything that the server must know of an upload stands in one flat vector. A `Release` adds the vectors up: clipped
and noised, or masked. All that follows is a function of the released sum, so it needs no privacy analysis of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import CollectsUploads, ReleaseTerms, SumsUploads
from fedra.core.model import Weights
from fedra.core.tree import Params, Tree
from fedra.core.uploads import SingleUploads, Uploads
from fedra.core.view import Population, Server
from fedra.errors import ConfigError

UPDATE = "update"
"""Name of the block that holds the clients' updates."""


class Released(NamedTuple):
    """What a release publishes.

    Args:
        total: The sum of the clients' weighted vectors.
        weight: The sum of their weights; a public constant under differential privacy.
    """

    total: Tensor
    weight: float


class Release(Protocol):
    """Adds up the clients' vectors; only `finish` shows anything of them."""

    def add(self, vectors: Tensor, weights: Sequence[float]) -> None:
        """Add vectors (n, d), one per client, each with its weight."""
        ...

    def finish(self) -> Released:
        """Return the released sum."""
        ...


@dataclass(frozen=True)
class Layout:
    """Where each number of an upload stands in the flat vector.

    Args:
        shapes: The shapes of all blocks by path, in order.
    """

    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, stacked: Params) -> Layout:
        """The layout of tensors with a leading client dimension."""
        return cls({path: value.shape[1:] for path, value in stacked.items()})

    @property
    def length(self) -> int:
        """The length of the vector."""
        return sum(shape.numel() for shape in self.shapes.values())

    @property
    def digest(self) -> str:
        """A hash of the layout; client and server compare it before anything is added up."""
        words = ";".join(f"{path}{tuple(shape)}" for path, shape in self.shapes.items())
        return hashlib.sha256(words.encode()).hexdigest()

    def flatten(self, stacked: Params) -> Tensor:
        """The vectors (n, length) of a stack of clients."""
        found = {path: value.shape[1:] for path, value in stacked.items()}
        if found != self.shapes:
            raise ConfigError("all clients must upload the same names and shapes, got a client with others")
        return torch.cat([value.reshape(len(value), -1).float() for value in stacked.values()], dim=1)

    def split_up(self, vector: Tensor) -> Params:
        """The blocks of a vector, by path."""
        parts = torch.split(vector, [shape.numel() for shape in self.shapes.values()])
        return {path: part.view(shape) for (path, shape), part in zip(self.shapes.items(), parts, strict=True)}


class ReleasedFold(SingleUploads):
    """Folds uploads through a release; it has the interface of `Fold`.

    Args:
        algorithm: The algorithm; each of its collecting parts must be able to work with sums (`SumsUploads`).
        release: Adds up the clients' vectors.
        layout: Where each number of an upload stands in a vector.
        terms: What is public about the round.
        weigh: A client's weight by its number of examples; by default all weights are 1.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        release: Release,
        layout: Layout,
        terms: ReleaseTerms,
        weigh: Callable[[int], float] = lambda examples: 1.0,
    ) -> None:
        self._algorithm, self._release, self._layout = algorithm, release, layout
        self._terms, self._weigh = terms, weigh
        self.uploads = 0
        self.factors: dict[int, float] = {}  # no robust rule goes with a release

    @torch.no_grad()
    def add_stack(self, uploads: Uploads, clients: Sequence[int] = ()) -> None:
        """Add a stack of uploads to the release."""
        blocks = upload_blocks(self._algorithm, uploads, self._terms)
        self._release.add(self._layout.flatten(blocks), list(map(self._weigh, uploads.examples)))
        self.uploads += len(uploads)

    def add_rejected(self, clients: Sequence[int]) -> None:
        """Count clients with an invalid upload as answers of zeros.

        Whether an upload is finite depends on the client's data, so neither the quorum nor a repeated round may.
        """
        for _ in clients:
            self._release.add(torch.full((1, self._layout.length), torch.nan), [1.0])
        self.uploads += len(clients)

    @torch.no_grad()
    def finish(
        self, server: Server, population: Population, observe: Callable[[Server, Server], None] | None = None
    ) -> Server:
        """The server after the round; a round without uploads releases noise alone."""
        terms, algorithm = self._terms, self._algorithm
        released = self._release.finish()
        blocks = self._layout.split_up(released.total)
        update = {path.partition("|")[2]: v for path, v in blocks.items() if path.startswith(f"{UPDATE}|")}
        update = {name: value.to(server.weights.params[name]) for name, value in update.items()}
        mean = algorithm.combine.released_change(update, released.weight, terms)
        combined = Server(
            weights=Weights(tree.add(server.weights.params, mean), server.weights.buffers), memory=server.memory
        )
        for name, part in algorithm.with_capability(CollectsUploads).items():
            total: Tree = {}
            if part.collects and isinstance(part, SumsUploads):
                own = {path.partition("|")[2]: v for path, v in blocks.items() if path.startswith(f"{name}|")}
                total = part.released_total(update, tree.unflatten(own), released.weight, terms)
            combined = part.finish_round(server, combined, total, population)
        result = combined
        for rule in algorithm.server:
            result = rule.update(server, result, population)
        if observe is not None:
            observe(combined, result)
        return result


def upload_blocks(algorithm: Algorithm, uploads: Uploads, terms: ReleaseTerms) -> Params:
    """All numbers that the server must know of a stack of uploads, with a leading client dimension, by path."""
    update = algorithm.combine.update_summands(uploads)
    blocks = {f"{UPDATE}|{name}": value for name, value in update.items()}
    for name, part in algorithm.with_capability(SumsUploads).items():
        if part.collects:
            own = tree.flatten(part.summands(uploads, terms))
            blocks |= {f"{name}|{path}": value for path, value in own.items()}
    return blocks
