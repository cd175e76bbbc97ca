"""Who takes part in a round: the published schedule, and a draw that depends on the seed and the round alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedra.experiment.cohort import CohortRule

LEGACY = [
    {26, 86, 2, 55, 75, 93, 16, 73, 54, 95},
    {80, 84, 33, 81, 93, 17, 36, 82, 69, 65},
    {83, 30, 56, 24, 16, 23, 2, 27, 28, 13},
]
"""The first rounds of FedSoL's public code with 100 clients, 10 a round."""


@dataclass(frozen=True)
class Sizes:
    """Clients of given sizes, without data."""

    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    def size(self, client: int) -> int:
        return self.sizes[client]

    def __getitem__(self, client: int) -> Any:
        raise AssertionError("sampling looks at no data")

    def joined(self, clients: Sequence[int]) -> Any:
        raise AssertionError("sampling looks at no data")

    def tensors(self) -> tuple[()]:
        return ()


def sample(rule: CohortRule, count: int = 100, seed: int = 0, round: int = 0, attempt: int = 0) -> list[int]:
    return rule.sample(Sizes((5,) * count), seed, round, attempt)


@pytest.mark.parametrize("round", range(3))
@pytest.mark.parametrize("seed", [0, 7])
def test_the_published_schedule(round: int, seed: int) -> None:
    assert set(sample(CohortRule(0.1, "legacy"), seed=seed, round=round)) == LEGACY[round]


def test_the_schedules_do_not_touch_the_global_generator() -> None:
    np.random.seed(5)  # noqa: NPY002  (the state that must stay)
    expected = np.random.rand(2)  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    first = np.random.rand()  # noqa: NPY002
    sample(CohortRule(0.1, "legacy"))
    assert [first, np.random.rand()] == expected.tolist()  # noqa: NPY002


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    fraction=st.floats(0.001, 1.0),
    sampling=st.sampled_from(["keyed", "legacy"]),
    seed=st.integers(0, 9),
    round=st.integers(0, 300),
)
def test_without_replacement_and_largest_first(
    sizes: list[int], fraction: float, sampling: Any, seed: int, round: int
) -> None:
    rule = CohortRule(fraction, sampling)
    cohort = rule.sample(Sizes(tuple(sizes)), seed, round, 0)
    assert len(cohort) == len(set(cohort)) == rule.size(len(sizes)) == max(int(fraction * len(sizes) + 1e-9), 1)
    assert set(cohort) <= set(range(len(sizes)))
    assert all((-sizes[a], a) < (-sizes[b], b) for a, b in pairwise(cohort))
    assert cohort == rule.sample(Sizes(tuple(sizes)), seed, round, 0)


@pytest.mark.parametrize(
    ("fraction", "count", "size"), [(0.1, 100, 10), (0.29, 100, 29), (0.3, 10, 3), (0.01, 20, 1), (1.0, 7, 7)]
)
def test_sizes(fraction: float, count: int, size: int) -> None:
    """0.29 * 100 is 28.999...: rounding must not lose a client."""
    assert len(sample(CohortRule(fraction), count)) == size


def test_the_draw_depends_on_seed_round_and_try_alone() -> None:
    rule = CohortRule(0.2)
    draws = {(s, r, a): tuple(sample(rule, seed=s, round=r, attempt=a)) for s in (0, 1) for r in (0, 1) for a in (0, 1)}
    assert len(set(draws.values())) == len(draws)
    sizes = tuple(range(100, 0, -1))
    assert set(rule.sample(Sizes(sizes), 0, 1, 0)) == set(draws[0, 1, 0])  # sizes order the cohort, no more


def test_everybody_is_drawn_about_equally_often() -> None:
    rule = CohortRule(0.2)
    seen = Counter(client for round in range(500) for client in sample(rule, 20, round=round))
    assert len(seen) == 20
    assert max(abs(count - 100) for count in seen.values()) < 45  # five standard deviations
