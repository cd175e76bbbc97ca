"""Exact search by cosine in blocks, so that a gallery of a million templates needs little more memory than its own.

Everything is checked and normalized block by block; no table of all scores is ever made.
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
"""How much memory a search may take for its working blocks."""

Done = Callable[[int], None]
"""Told of every block how many comparisons it held."""


def ignore_progress(count: int) -> None:
    """Nobody is told."""


class SimilarityBlock(NamedTuple):
    """The cosines (q, g) of some queries with some gallery rows, and where both begin."""

    query: int
    row: int
    scores: Tensor


class Matches(NamedTuple):
    """For each query its nearest gallery rows: cosines (Q, k) falling, and row numbers (Q, k)."""

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
    """The cosines of all queries (Q, d) with all gallery rows (G, d), block after block, on the queries' device.

    `norms` (G, 1) are the rows' lengths, where they are known and checked: for few queries, measuring them takes as
    long as the product.
    """
    check_table("the queries", queries)
    check_table("the gallery templates", gallery)
    check_same_length("the queries", queries, "the gallery templates", gallery)
    queries, gallery, dtype = queries.detach(), gallery.detach(), working_dtype(queries, gallery)
    some_rows, some_queries = _block_sizes(len(gallery), queries.shape[1], dtype.itemsize, block_bytes)
    for row in range(0, len(gallery), some_rows):
        templates = gallery[row : row + some_rows].to(queries.device, dtype)
        if norms is None:
            measured = lengths("the gallery templates", templates, row)
        else:
            measured = norms[row : row + some_rows].to(templates)
        for query in range(0, len(queries), some_queries):
            asked = directions("the queries", queries[query : query + some_queries].to(dtype), query)
            # Dividing the scores, not the templates, saves a copy of the gallery.
            scores = (asked @ templates.T).div_(measured.T)
            yield SimilarityBlock(query, row, scores)
            done(scores.numel())


def _block_sizes(gallery: int, length: int, item: int, block_bytes: int) -> tuple[int, int]:
    """Gallery rows and queries of a block: half of the bytes for each side, counting copies and masks."""
    if block_bytes < 1:
        raise ConfigError(f"block_bytes = {block_bytes} is no memory at all: give at least some megabytes")
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
    """The k gallery rows of the largest cosine with each query; of equal cosines the lower row comes first."""
    if not 1 <= k <= len(gallery):
        raise ConfigError(f"k = {k} nearest cannot be found in a gallery of {len(gallery)}: give 1 to {len(gallery)}")
    kept: dict[int, Matches] = {}
    for block in similarity_blocks(queries, gallery, norms=norms, block_bytes=block_bytes, done=done):
        found = _best(block.scores, k)
        found = Matches(found.scores, found.rows + block.row)
        kept[block.query] = _merged(kept[block.query], found, k) if block.query in kept else found
    return Matches(torch.cat([part.scores for part in kept.values()]), torch.cat([part.rows for part in kept.values()]))


def _best(scores: Tensor, k: int) -> Matches:
    """The k largest of each line, ties by column: topk alone leaves open which of equal scores it takes."""
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


def _merged(earlier: Matches, later: Matches, k: int) -> Matches:
    scores, order = torch.cat([earlier.scores, later.scores], dim=1).sort(dim=1, descending=True, stable=True)
    return Matches(scores[:, :k], torch.cat([earlier.rows, later.rows], dim=1).gather(1, order[:, :k]))


def pair_cosines(
    embeddings: Tensor, first: Tensor, second: Tensor, *, block_bytes: int = BLOCK_BYTES, done: Done = ignore_progress
) -> Tensor:
    """The cosine of rows first[i] and second[i] of `embeddings`, for every i, in blocks."""
    check_table("the embeddings", embeddings)
    check_integers("second halves of pairs", second, len(first), "first halves")
    check_integers("first halves of pairs", first, len(second), "second halves")
    for name, rows in (("first", first), ("second", second)):
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= len(embeddings)):
            raise DataError(f"the {name} halves of pairs name a row outside 0 to {len(embeddings) - 1}: check the list")
    step = max(1, block_bytes // (4 * embeddings.shape[1] * max(embeddings.element_size(), 4)))
    found = []
    for start in range(0, len(first), step):
        some = slice(start, start + step)
        left, right = (embeddings.detach()[rows[some]] for rows in (first, second))
        units = (directions("the embeddings, pair by pair", rows, start) for rows in (left, right))
        found.append(torch.linalg.vecdot(*units))
        done(len(left))
    return torch.cat(found) if found else embeddings.new_zeros(0)


class Tail:
    """The `size` largest of a stream of scores, exactly, in memory for twice as many and one block."""

    def __init__(self, size: int) -> None:
        self._size, self._parts, self._held = size, list[Tensor](), 0
        self._floor: Tensor | None = None

    def add(self, scores: Tensor) -> None:
        """Take note of a block of scores, of any shape."""
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
        """How many more scores there is room for."""
        return max(0, self._size - self._held)

    def largest(self) -> Tensor:
        """At most `size` scores, falling."""
        self._shrink()
        return self._parts[0]
