"""Blocked search against sorting the whole table, whatever the block size; and its bound on memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.faces.metrics import pair_cosines, top_k
from fedra.faces.metrics.search import Tail, similarity_blocks

BLOCKS = st.integers(1, 5000)
AXES = torch.eye(4, dtype=torch.float64)


def rows(count: int, length: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, length, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def naive(queries: Tensor, gallery: Tensor) -> list[list[float]]:
    return [[float(q @ g / q.norm() / g.norm()) for g in gallery] for q in queries]


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 20), BLOCKS)
@settings(max_examples=60, deadline=None)
def test_any_block_size_finds_the_same(queries: int, gallery: int, k: int, block_bytes: int) -> None:
    k = min(k, gallery)
    asked, known = rows(queries, seed=1), rows(gallery, seed=2)
    found = top_k(asked, known, k, block_bytes=block_bytes)
    for line, scores in enumerate(naive(asked, known)):
        best = sorted(range(gallery), key=lambda row: -scores[row])[:k]
        assert found.rows[line].tolist() == best
        assert found.scores[line].tolist() == pytest.approx([scores[row] for row in best], abs=1e-12)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=15), st.integers(1, 15), BLOCKS)
@settings(max_examples=100, deadline=None)
def test_of_equal_scores_the_lower_row_comes_first(axes: list[int], k: int, block_bytes: int) -> None:
    k = min(k, len(axes))
    found = top_k(AXES, AXES[axes], k, block_bytes=block_bytes)
    for axis in range(4):
        order = sorted(range(len(axes)), key=lambda row: (axes[row] != axis, row))
        assert found.rows[axis].tolist() == order[:k]


@pytest.mark.parametrize("block_bytes", [10_000, 10**8])
def test_many_equal_scores_are_cut_by_row(block_bytes: int) -> None:
    axes = torch.arange(3000) % 4
    found = top_k(AXES, AXES[axes], 40, block_bytes=block_bytes)
    for axis in range(4):
        assert found.rows[axis].tolist() == list(range(axis, 4 * 40, 4))


@pytest.mark.parametrize("block_bytes", [1000, 10**8])
def test_known_lengths_change_nothing(block_bytes: int) -> None:
    asked, known = rows(7, seed=3), rows(50, seed=4)
    norms = torch.linalg.vector_norm(known, dim=1, keepdim=True)
    plain = top_k(asked, known, 6, block_bytes=block_bytes)
    found = top_k(asked, known, 6, norms=norms, block_bytes=block_bytes)
    assert torch.equal(found.rows, plain.rows)
    assert torch.equal(found.scores, plain.scores)


def test_half_precision_is_searched_in_single() -> None:
    known = rows(40, 64).half()
    found = top_k(known, known, 1)
    assert found.scores.dtype == torch.float32
    assert found.rows[:, 0].tolist() == list(range(40))
    assert found.scores[:, 0].tolist() == pytest.approx([1.0] * 40, abs=1e-6)


def test_blocks_cover_the_table_once_and_stay_small() -> None:
    asked, known = rows(30, 8, 1, torch.float32), rows(500, 8, 2, torch.float32)
    table, told = torch.full((30, 500), torch.nan), []
    for block in similarity_blocks(asked, known, block_bytes=4096, done=told.append):
        lines, columns = block.scores.shape
        assert table[block.query : block.query + lines, block.row : block.row + columns].isnan().all()
        table[block.query : block.query + lines, block.row : block.row + columns] = block.scores
        assert 4 * (lines * columns + columns * 8 + lines * 8) <= 4096
    assert torch.allclose(table, torch.tensor(naive(asked, known)), atol=1e-6)
    assert sum(told) == 30 * 500
    assert len(told) > 3


@given(st.lists(st.lists(st.integers(-5, 5), max_size=12), min_size=1, max_size=8), st.integers(1, 10))
def test_a_tail_is_the_end_of_the_sorted_stream(stream: list[list[int]], size: int) -> None:
    tail = Tail(size)
    for part in stream:
        tail.add(torch.tensor(part, dtype=torch.float32))
    everything = sorted((x for part in stream for x in part), reverse=True)
    assert tail.largest().tolist() == everything[:size]


@given(st.integers(1, 20), BLOCKS)
@settings(max_examples=30, deadline=None)
def test_pairs_of_rows(pairs: int, block_bytes: int) -> None:
    table = rows(9)
    draw = torch.Generator().manual_seed(pairs)
    first, second = (torch.randint(9, (pairs,), generator=draw) for _ in range(2))
    scores, expected = pair_cosines(table, first, second, block_bytes=block_bytes), naive(table, table)
    assert scores.tolist() == pytest.approx(
        [expected[i][j] for i, j in zip(first.tolist(), second.tolist(), strict=True)], abs=1e-12
    )


@pytest.mark.parametrize(
    ("row", "value", "sentence"),
    [(3, 0.0, "row 3 is zero"), (2, torch.nan, "row 2 contains NaN"), (4, torch.inf, "row 4 contains NaN or inf")],
)
@pytest.mark.parametrize("block_bytes", [1, 300, 10**6])
def test_a_row_without_direction_is_named(row: int, value: float, sentence: str, block_bytes: int) -> None:
    broken = rows(6)
    broken[row] = value
    with pytest.raises(DataError, match=f"the gallery templates: {sentence}"):
        top_k(rows(2), broken, 1, block_bytes=block_bytes)
    with pytest.raises(DataError, match=f"the queries: {sentence}"):
        top_k(broken, rows(2), 1, block_bytes=block_bytes)


def test_other_mistakes() -> None:
    with pytest.raises(ConfigError, match=r"k must be between 1 and 3 \(the gallery size\), got 4"):
        top_k(rows(2), rows(3), 4)
    with pytest.raises(DataError, match="must have the same length, got 5 and 6"):
        top_k(rows(2), rows(3, 6), 1)
    with pytest.raises(DataError, match=r"floating-point tensor \(N, d\), got torch.int64"):
        top_k(torch.ones(2, 5, dtype=torch.int64), rows(3), 1)
    with pytest.raises(DataError, match="queries must not be empty"):
        top_k(rows(0), rows(3), 1)
    with pytest.raises(ConfigError, match="block_bytes must be positive, got 0"):
        top_k(rows(2), rows(3), 1, block_bytes=0)
    with pytest.raises(DataError, match="first rows of pairs must be between 0 and 2"):
        pair_cosines(rows(3), torch.tensor([3]), torch.tensor([0]))
    with pytest.raises(
        DataError, match="second rows of pairs must have length 2, one for each of the first rows, got 1"
    ):
        pair_cosines(rows(3), torch.tensor([1, 0]), torch.tensor([0]))
