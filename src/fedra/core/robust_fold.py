"""Combine rules that choose a weight for every upload, once all of a round have come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.model import Weights
from fedra.core.part import Combine
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Upload
from fedra.errors import RunError

BLOCK = 65_536
"""Coordinates whose inner products are computed at once, so memory stays small."""
CACHED = 4096
"""Coordinates of all clients that are centered or sorted at once."""


class Selected(NamedTuple):
    """An upload that a rule selected, its number in the round, and the factor of its update: (uploads) * weight."""

    upload: Upload
    number: int
    factor: float


class Selecting(Combine, abstract=True):
    """A combine rule that chooses one weight per upload from the inner products of the updates.

    Subclasses define `choose_weights`. All uploads of a round are kept until it is finished; other parts that collect
    uploads see each one with its update scaled by (number of uploads) * weight.

    Example:
        ```python
        class Shortest(Selecting):  # the shortest update alone
            def choose_weights(self, gram, examples):
                return torch.nn.functional.one_hot(gram.diagonal().argmin(), len(gram)).double()
        ```
    """

    def choose_weights(self, gram: Tensor, examples: Sequence[int]) -> Tensor:
        """The weights of the uploads.

        Args:
            gram: Inner products (n, n) of the updates in float64.
            examples: The clients' numbers of examples, as they claim.

        Returns:
            A weight (n,) for each upload; they need not add up to one.
        """
        raise TypeError(f"{type(self).__name__} must define choose_weights")

    def add(self, total: Tree, upload: Upload) -> Tree:
        return {**total, "uploads": [*total.get("uploads", []), upload]}

    def select(self, total: Tree) -> list[Selected]:
        """The uploads with the factors of their updates; those of weight 0 are left out.

        Args:
            total: The uploads of the round.

        Returns:
            The selected uploads.
        """
        uploads: list[Upload] = total["uploads"]
        gram = inner_products([upload.delta for upload in uploads])
        return select_uploads(uploads, self.choose_weights(gram, [upload.examples for upload in uploads]))

    def finish(self, total: Tree, seen: Callable[[Selected], None] | None = None) -> Weights:
        """The weighted sum of the updates; buffers are averaged over the selected uploads.

        Args:
            total: The uploads of the round.
            seen: Called with each selected upload, its update scaled; one at a time, so memory does not double.

        Returns:
            The change of the parameters, and the new buffers.
        """
        selected, count = self.select(total), len(total["uploads"])
        change: Params = {}
        buffers: Params = {}
        for one in selected:
            upload = replace(one.upload, delta=tree.scale(one.upload.delta, one.factor))
            if seen is not None:
                seen(one._replace(upload=upload))
            change = tree.accumulate(change, upload.delta, 1 / count)
            tracked = {name: value for name, value in upload.buffers.items() if value.is_floating_point()}
            buffers = tree.accumulate(buffers, tracked, 1 / len(selected))
        counters = {
            name: torch.stack([one.upload.buffers[name] for one in selected]).amax(dim=0)
            for name, value in selected[0].upload.buffers.items()
            if not value.is_floating_point()
        }
        return Weights(change, {**buffers, **counters})

    def add_stack(self, total: Tree, uploads: Uploads) -> Tree:
        for upload in uploads:
            total = self.add(total, upload)
        return total


class RootSelecting(Selecting, abstract=True):
    """A rule that compares the uploads with an update of the server's own, trained on clean examples: the root update.

    Subclasses define `trust`. In a simulation the server gets `share` of every client's examples.

    Example:
        ```python
        class SameSide(RootSelecting):  # the plain mean of the updates that do not oppose the root update
            def trust(self, gram):
                agrees = (gram[0, 1:] > 0).double()
                return agrees / agrees.sum().clamp(min=1)
        ```
    """

    share: float

    def trust(self, gram: Tensor) -> Tensor:
        """The weights of the uploads.

        Args:
            gram: Inner products (n + 1, n + 1) in float64 of the root update, which comes first, and the updates.

        Returns:
            A weight (n,) for each upload; if all are zero, the model does not change.
        """
        raise TypeError(f"{type(self).__name__} must define trust")

    def select(self, total: Tree) -> list[Selected]:
        uploads: list[Upload] = total["uploads"]
        root: Upload | None = total.get("root")
        if root is None:
            raise RunError(
                f"the combine rule '{self.name}' needs the root update of the round, got none: use fedra.run"
            )
        own = {name: value.to(uploads[0].delta[name]) for name, value in root.delta.items()}
        weights = self.trust(inner_products([own, *(upload.delta for upload in uploads)], centered=False))
        return select_uploads(uploads, weights) or [Selected(replace(root, delta=own), len(uploads), 0.0)]


def select_uploads(uploads: Sequence[Upload], weights: Tensor) -> list[Selected]:
    """The uploads with the factors of their updates; those of weight 0 are left out.

    Args:
        uploads: The uploads of a round.
        weights: A weight (n,) for each of them.

    Returns:
        The selected uploads.
    """
    pairs = enumerate(zip(uploads, weights.tolist(), strict=True))
    return [Selected(upload, number, len(uploads) * weight) for number, (upload, weight) in pairs if weight]


def inner_products(updates: Sequence[Params], centered: bool = True) -> Tensor:
    """The inner products (n, n) of updates in float64.

    Each block of coordinates is centered before the product, so distances of nearly equal updates do not vanish in
    cancellation; the means are added back afterward.

    Args:
        updates: Tensors by parameter name, the same names for each.
        centered: Whether to center; cosines need it off, since one huge update would spoil those of all others.

    Returns:
        The matrix on the CPU.
    """
    count = len(updates)
    gram = torch.zeros(count, count, dtype=torch.float64)
    for name in updates[0]:
        rows = [update[name].reshape(-1) for update in updates]
        rest = rows[0].new_empty(0, 0, dtype=torch.float64)
        for start in range(0, len(rows[0]), BLOCK):
            block = [row[start : start + BLOCK] for row in rows]
            if rest.shape[1] != len(block[0]):  # large tensors are slow to allocate
                rest = rest.new_empty(count, len(block[0]))
            center = _center(block, rest, centered)
            along = rest @ center
            gram += (rest @ rest.T + along.unsqueeze(0) + along.unsqueeze(1) + center @ center).cpu()
    return gram


def _center(rows: Sequence[Tensor], out: Tensor, centered: bool) -> Tensor:
    """Write the rows without their mean to `out` (n, d); returns the mean, or zero if they are not to be centered."""
    center = out.new_zeros(out.shape[1])
    for part in split_columns(len(center)):
        block = torch.stack([row[part] for row in rows]).to(out.dtype)
        if centered:
            torch.mean(block, dim=0, out=center[part])
        torch.sub(block, center[part], out=out[:, part])
    return center


def split_columns(count: int) -> Iterator[slice]:
    """Split coordinates into blocks that stay in the processor's cache for a hundred clients.

    The last block has the rest too: torch adds up a handful of columns in another order than many.
    """
    blocks = max(count // CACHED, 1)
    for block in range(blocks):
        yield slice(block * CACHED, (block + 1) * CACHED if block + 1 < blocks else None)
