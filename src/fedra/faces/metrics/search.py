"""Exact search by cosine in blocks: a gallery of a million templates needs little additional memory.

Rows are checked and normalized block by block; the matrix of all scores is never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.faces.metrics.embedding_checks import check_integers, check_same_length, check_table, directions, lengths
from fedra.losses.angle import working_dtype

BLOCK_BYTES = 256 * 2**20
"""Memory for the working blocks of a search."""

Done = Callable[[int], None]
"""Called after each block with the number of comparisons in it."""


def ignore_progress(count: int) -> None:
    """Do nothing: the default for `done`."""


class SimilarityBlock(NamedTuple):
    """Cosines (q, g) of consecutive queries and gallery rows, and the first index of each."""

    query: int
    row: int
    scores: Tensor


class Matches(NamedTuple):
    """The nearest gallery rows of each query.

    Args:
        scores: Cosines (Q, k), descending.
        rows: Gallery rows (Q, k).

    Example:
        >>> top_k(torch.eye(2), torch.eye(2), 1).rows
        tensor([[0],
                [1]])
    """

    scores: Tensor
    rows: Tensor


def similarity_blocks(
    queries: Tensor,
    gallery: Tensor,
    *,
    norms: Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
    done: Done = ignore_progress,
) -> Iterator[SimilarityBlock]:
    """Yield the cosines of all queries (Q, d) with all gallery rows (G, d) in blocks, on the device of the queries.

    `norms` (G, 1) are the norms of the gallery rows, if known and checked: for few queries, computing them takes as
    long as the product.
    """
    check_table("the queries", queries)
    check_table("the gallery templates", gallery)
    check_same_length("the queries", queries, "the gallery templates", gallery)
    queries, gallery, dtype = queries.detach(), gallery.detach(), working_dtype(queries, gallery)
    row_step, query_step = _block_sizes(len(gallery), queries.shape[1], dtype.itemsize, block_bytes)
    for row in range(0, len(gallery), row_step):
        templates = gallery[row : row + row_step].to(queries.device, dtype)
        if norms is None:
            block_norms = lengths("the gallery templates", templates, row)
        else:
            block_norms = norms[row : row + row_step].to(templates)
        for query in range(0, len(queries), query_step):
            units = directions("the queries", queries[query : query + query_step].to(dtype), query)
            # Dividing the scores instead of the templates avoids a copy of the gallery.
            scores = (units @ templates.T).div_(block_norms.T)
            yield SimilarityBlock(query, row, scores)
            done(scores.numel())


def _block_sizes(gallery: int, length: int, item: int, block_bytes: int) -> tuple[int, int]:
    """Return the gallery rows and queries of a block: half of the bytes for each side, counting copies and masks."""
    if block_bytes < 1:
        raise ConfigError(f"block_bytes must be positive, got {block_bytes}")
    half = block_bytes // 2
    rows = min(gallery, max(1, half // (2 * length * item)))
    return rows, max(1, half // (2 * length * item + 3 * rows * item))


def top_k(
    queries: Tensor,
    gallery: Tensor,
    k: int,
    *,
    norms: Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
    done: Done = ignore_progress,
) -> Matches:
    """Find the k gallery rows with the largest cosine for each query.

    Args:
        queries: Embeddings (Q, d).
        gallery: Embeddings (G, d).
        k: Number of rows to return per query, from 1 to G.
        norms: Norms (G, 1) of the gallery rows, if known.
        block_bytes: Memory for working blocks.
        done: Called with the number of comparisons after each block.

    Returns:
        Cosines and rows (Q, k), best first; of equal cosines the lower row comes first.

    Example:
        >>> top_k(torch.eye(3)[:1], torch.eye(3), 2).rows
        tensor([[0, 1]])
    """
    if not 1 <= k <= len(gallery):
        raise ConfigError(f"k must be between 1 and {len(gallery)} (the gallery size), got {k}")
    best: dict[int, Matches] = {}
    for block in similarity_blocks(queries, gallery, norms=norms, block_bytes=block_bytes, done=done):
        found = _select_best(block.scores, k)
        found = Matches(found.scores, found.rows + block.row)
        best[block.query] = _merge(best[block.query], found, k) if block.query in best else found
    return Matches(torch.cat([part.scores for part in best.values()]), torch.cat([part.rows for part in best.values()]))


def _select_best(scores: Tensor, k: int) -> Matches:
    """Return the k largest of each row, ties ordered by column; topk alone leaves the order of ties open."""
    k = min(k, scores.shape[1])
    values, columns = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    cut_through_ties = values[:, k - 1] == values[:, -1] if values.shape[1] > k else torch.zeros(0, dtype=torch.bool)
    values, columns = values[:, :k], columns[:, :k]
    if bool(cut_through_ties.any()):
        ordered = scores[cut_through_ties].sort(dim=1, descending=True, stable=True)
        values[cut_through_ties], columns[cut_through_ties] = ordered.values[:, :k], ordered.indices[:, :k]
    columns, by_column = columns.sort(dim=1)
    values, by_value = values.gather(1, by_column).sort(dim=1, descending=True, stable=True)
    return Matches(values, columns.gather(1, by_value))


def _merge(earlier: Matches, later: Matches, k: int) -> Matches:
    scores, order = torch.cat([earlier.scores, later.scores], dim=1).sort(dim=1, descending=True, stable=True)
    return Matches(scores[:, :k], torch.cat([earlier.rows, later.rows], dim=1).gather(1, order[:, :k]))


def pair_cosines(
    embeddings: Tensor, first: Tensor, second: Tensor, *, block_bytes: int = BLOCK_BYTES, done: Done = ignore_progress
) -> Tensor:
    """Compute the cosines of pairs of rows in blocks.

    Args:
        embeddings: Embeddings (N, d).
        first: First row of each pair (P,).
        second: Second row of each pair (P,).
        block_bytes: Memory for working blocks.
        done: Called with the number of pairs after each block.

    Returns:
        The cosines (P,).

    Example:
        >>> pair_cosines(torch.eye(2), torch.tensor([0, 0]), torch.tensor([0, 1]))
        tensor([1., 0.])
    """
    check_table("the embeddings", embeddings)
    check_integers("second rows of pairs", second, len(first), "first rows")
    check_integers("first rows of pairs", first, len(second), "second rows")
    for name, rows in (("first", first), ("second", second)):
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= len(embeddings)):
            raise DataError(f"the {name} rows of pairs must be between 0 and {len(embeddings) - 1}: check the list")
    step = max(1, block_bytes // (4 * embeddings.shape[1] * max(embeddings.element_size(), 4)))
    found = []
    for start in range(0, len(first), step):
        block = slice(start, start + step)
        left, right = (embeddings.detach()[rows[block]] for rows in (first, second))
        units = (directions("the embeddings, pair by pair", rows, start) for rows in (left, right))
        found.append(torch.linalg.vecdot(*units))
        done(len(left))
    return torch.cat(found) if found else embeddings.new_zeros(0)


class Tail:
    """The exact `size` largest of a stream of scores, in memory for twice as many plus one block."""

    def __init__(self, size: int) -> None:
        self._size, self._parts, self._held = size, list[Tensor](), 0
        self._floor: Tensor | None = None

    def add(self, scores: Tensor) -> None:
        """Add a block of scores of any shape."""
        scores = scores.flatten() if self._floor is None else scores[scores > self._floor]
        self._parts.append(scores)
        self._held += len(scores)
        if self._held > 2 * self._size:
            self._shrink()

    def _shrink(self) -> None:
        largest = torch.cat(self._parts).topk(min(self._size, self._held)).values
        self._parts, self._held = [largest], len(largest)
        self._floor = largest[-1] if len(largest) == self._size else None

    def missing(self) -> int:
        """Return how many scores are missing to `size`."""
        return max(0, self._size - self._held)

    def largest(self) -> Tensor:
        """Return at most `size` scores, descending."""
        self._shrink()
        return self._parts[0]
