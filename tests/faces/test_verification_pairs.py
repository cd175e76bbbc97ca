from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedra.data import Dataset, Split
from fedra.data.pairs import draw_pairs, interleave_pairs
from fedra.errors import DataError


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.integers(0, 5))
def test_drawn_pairs_are_balanced_distinct_and_true(sizes: list[int], seed: int) -> None:
    people = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    people = people[torch.randperm(len(people), generator=torch.Generator().manual_seed(seed))]
    if max(sizes) == 1:
        with pytest.raises(DataError, match="pairs of one person, got 0"):
            draw_pairs(people)
        return
    pairs = draw_pairs(people, seed=seed)
    assert torch.equal(people[pairs.first] == people[pairs.second], pairs.same)
    assert int(pairs.same.sum()) * 2 == len(pairs)
    unordered = {frozenset(pair) for pair in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)}
    assert len(unordered) == len(pairs)
    assert all(len(pair) == 2 for pair in unordered)


def test_every_genuine_pair_can_be_drawn() -> None:
    people = torch.tensor([0, 1, 0, 1, 1, 2])
    pairs = draw_pairs(people, 8)
    genuine = {
        frozenset((a, b))
        for a, b, same in zip(*map(torch.Tensor.tolist, (pairs.first, pairs.second, pairs.same)), strict=True)
        if same
    }
    assert genuine == {frozenset(pair) for pair in ((0, 2), (1, 3), (1, 4), (3, 4))}


def test_every_impostor_pair_can_be_drawn() -> None:
    people = torch.tensor([0, 1, 0, 0, 0, 2])
    pairs = draw_pairs(people, 12)
    rows = zip(pairs.first.tolist(), pairs.second.tolist(), pairs.same.tolist(), strict=True)
    assert len({frozenset((a, b)) for a, b, same in rows if not same}) == 6
    found = {frozenset((a, b)) for seed in range(40) for a, b in impostors(people, seed)}
    assert found == {frozenset((a, b)) for a in range(6) for b in range(6) if people[a] != people[b]}


def impostors(people: torch.Tensor, seed: int) -> list[tuple[int, int]]:
    pairs = draw_pairs(people, 6, seed=seed)
    return list(zip(pairs.first[~pairs.same].tolist(), pairs.second[~pairs.same].tolist(), strict=True))


def test_pairs_depend_on_the_seed_alone() -> None:
    people = torch.arange(30).repeat_interleave(5)
    one, same, other = (draw_pairs(people, 100, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.first, same.first)
    assert torch.equal(one.second, same.second)
    assert not torch.equal(one.first, other.first)


def test_folds_have_both_kinds() -> None:
    pairs = draw_pairs(torch.arange(30).repeat_interleave(5), 400)
    assert pairs.folds.bincount().tolist() == [40] * 10
    assert pairs.folds.diff().min() >= 0
    assert all(pairs.same[pairs.folds == fold].sum() == 20 for fold in range(10))
    uneven = interleave_pairs(torch.zeros(10, 2, dtype=torch.int64), torch.ones(30, 2, dtype=torch.int64))
    assert all(uneven.same[uneven.folds == fold].sum() == 1 for fold in range(10))


def test_too_many_pairs_are_refused() -> None:
    with pytest.raises(DataError, match=r"at least 10 pairs of one person, got 3 from 6 test images of 3 people"):
        draw_pairs(torch.tensor([0, 0, 1, 1, 2, 2]), 20)
    with pytest.raises(DataError, match="pairs of two people, got 0"):
        draw_pairs(torch.zeros(5, dtype=torch.int64))


def test_accuracy_is_counted_on_known_people() -> None:
    split = Split(torch.arange(5), torch.tensor([0, 2, 1, 3, 2]))
    dataset = Dataset("d", split, split, ("a", "b"))
    assert dataset.known_test.inputs.tolist() == [0, 2]
    everybody = Dataset("d", split, split, ("a", "b", "c", "d"))
    assert everybody.known_test is split
